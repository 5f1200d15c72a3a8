"""Saying no: what was tried on a model, what stood in the way, and the ways out."""

from __future__ import annotations

from collections import Counter

from torch import nn

from spear_hf.boundaries.blocks import ROWS
from spear_hf.boundaries.trace import Call, Trace
from spear_hf.errors import NoBoundariesError


def no_boundaries_error(model: nn.Module, tried: list[str], trace: Trace) -> NoBoundariesError:
    """The error for a model in which no source found stages that the probe could prove.

    Args:
        model: what was searched.
        tried: one reason for each source that proposed something.
        trace: the probe's record, which tells what has a bypass or runs too often.
    """
    name = type(model).__name__
    reasons = tried or ["no timm feature_info, no boundary rule and no chain of blocks found", *_obstacles(trace)]
    lines = "\n  ".join(reasons)
    return NoBoundariesError(
        f"no verified stage boundaries in {name}; pass boundaries=[Boundary(depth, name, module), ...] or register a "
        f"rule with @boundary_rule({name}). Tried:\n  {lines}"
    )


def _obstacles(trace: Trace) -> list[str]:
    """What a person would have taken for the blocks, and why they are none."""
    calls = [c for c in trace.calls if any(c.module.children()) and type(c.module) not in ROWS and c.path]
    kinds = Counter(type(call.module) for call in calls)
    last = max(calls, key=lambda call: (kinds[type(call.module)], -call.path.count("."), call.ended), default=None)
    if last is None:
        return []
    kind, times = type(last.module), len(trace.calls_of[last.path])
    if times > 1:
        return [f"{last.path!r} runs {times} times in one forward: a hook would steer each time"]
    bypass = _bypass(trace, last)
    return [f"{last.path!r}, the last of {kinds[kind]} {kind.__name__}, has a bypass{bypass}"] if bypass else []


def _bypass(trace: Trace, call: Call) -> str:
    used = [value.edge for value in call.outputs if trace.flow.is_used(value.edge)]
    return "" if not used or trace.flow.is_cut(used[0]) else trace.bypass_of(used[0])
