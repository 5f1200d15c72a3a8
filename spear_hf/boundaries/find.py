"""Find the stage boundaries of a network: a user's rule, or the first of three proposals that a probe verifies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.blocks import CONTAINERS, trunk
from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.feature_info import from_feature_info
from spear_hf.boundaries.joint import from_joint_cuts
from spear_hf.boundaries.place import Stem, place, place_what_holds
from spear_hf.boundaries.proposal import Proposal, from_structure
from spear_hf.boundaries.trace import Call, Trace
from spear_hf.boundaries.verify import ProbeSession, shape_at, verify_boundaries
from spear_hf.errors import BoundaryError, NoBoundariesError

BoundaryRule = Callable[[nn.Module, int | None], list[Boundary]]

"""rule(model, num_groups) -> the boundaries of a model of one class."""

RULES: dict[type[nn.Module] | str, BoundaryRule] = {}
"""The registered rules, by class, or by class name if importing the class is not wanted."""


def boundary_rule(architecture: type[nn.Module] | str) -> Callable[[BoundaryRule], BoundaryRule]:
    """A decorator that registers `rule(model, num_groups) -> list[Boundary]` for a class and its subclasses.

    A later rule of the same class replaces it. `channels` may stay 0: the probe fills in channels and axis. The
    boundaries of a rule are verified like all others.

    >>> from spear_hf.boundaries import Boundary, boundary_rule
    >>> @boundary_rule("MyNet")
    ... def my_net(model, num_groups):
    ...     return [Boundary(0, "stem", "stem"), Boundary(1, "stage1", "body.3")]
    """

    def register(rule: BoundaryRule) -> BoundaryRule:
        RULES[architecture] = rule
        return rule

    return register


def _rule_for(model: nn.Module) -> BoundaryRule | None:
    """The rule of the first class in the model's method resolution order that has one, by class or by name."""
    for kind in type(model).__mro__:
        rule = RULES.get(kind) or RULES.get(kind.__name__)
        if rule is not None:
            return rule
    return None


@dataclass(frozen=True)
class Findings:
    """What a search found, and how.

    Args:
        boundaries: z_0..z_L, verified.
        source: "rule", "metadata" (timm's feature_info as it is), "repaired" (with entries moved or dropped),
            "structural", "joint" (several tensors to a boundary) or, for strict=False, "partial".
        shapes: the shape of each boundary's tensor for the probe's batch of two; empty for a rule.
        notes: what was repaired or left out, for people.

    >>> from spear_hf.boundaries import Boundary, Findings
    >>> Findings([Boundary(0, "stem", "maxpool")], "rule").notes
    []
    """

    boundaries: list[Boundary]
    source: str
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_boundaries(
    model: nn.Module,
    num_groups: int | None = None,
    *,
    stem: Stem = "auto",
    inputs: Tensor | Mapping[str, Any] | None = None,
    strict: bool = True,
) -> list[Boundary]:
    """z_0 (the stem) and z_1..z_L (the stages) of `model`, each verified by a probe forward; `model` is left as it was.

    Args:
        model: any classifier, on any device and of any dtype; on the meta device only the data flow is checked.
        num_groups: into how many stages a stack of equal blocks is divided (None: 4); it has no effect on a network
            that has stages.
        stem: "auto" is the tensor that enters the first body block; "patch_embed" what the patch embedding returns,
            before positions and class tokens; "feature_info" the stem tensor that timm lists (NFNet's C_0 = 64).
        inputs: a batch that the model accepts; None derives one from the model.
        strict: False returns the depths that hold, if others have a bypass, instead of raising.

    Raises:
        NoBoundariesError: with what was tried, what has a bypass, and the ways out.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf import find_boundaries
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    >>> [(b.name, b.module, b.channels) for b in find_boundaries(model, inputs=torch.ones(2, 3, 16, 16))]
    [('stem', '1', 8), ('stage1', '3', 16), ('stage2', '4', 16)]
    """
    return search_boundaries(model, num_groups, stem=stem, inputs=inputs, strict=strict).boundaries


@torch.inference_mode(False)
@torch.enable_grad()
def search_boundaries(
    model: nn.Module,
    num_groups: int | None = None,
    *,
    stem: Stem = "auto",
    inputs: Tensor | Mapping[str, Any] | None = None,
    strict: bool = True,
) -> Findings:
    """What `find_boundaries` finds, with source, shapes and repairs; it has the same arguments and errors.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries import search_boundaries
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> search_boundaries(model, inputs=torch.ones(2, 3, 16, 16)).source
    'structural'
    """
    rule = _rule_for(model)
    if rule is not None:
        return Findings(verify_boundaries(model, rule(model, num_groups), inputs, strict=True), "rule")
    session = ProbeSession(model, inputs)
    tried: list[str] = []
    proposals: list[Proposal] = []
    for proposal in _propose(session.trace, num_groups):
        proposals.append(proposal)
        if proposal.gap:
            tried.append(f"{proposal.source}: {proposal.gap}")
            continue
        try:
            return _findings(session, proposal, place(session, proposal, stem))
        except BoundaryError as error:
            tried.append(f"{proposal.source}: {error}")
    for proposal in [] if strict else proposals:
        boundaries = place_what_holds(session, proposal, stem)
        if boundaries:
            return replace(_findings(session, proposal, boundaries), source="partial", notes=tried)
    raise _no_boundaries_error(model, tried, session.trace)


def _propose(trace: Trace, num_groups: int | None) -> Iterator[Proposal]:
    """The proposal of each source, best source first; a source is not asked before the ones before it have failed."""
    blocks = trunk(trace)
    sources = (
        partial(from_feature_info, trace, blocks, num_groups),
        partial(from_structure, trace, blocks, num_groups),
        partial(from_joint_cuts, trace, num_groups),
    )
    for source in sources:
        proposal = source()
        if proposal is not None:
            yield proposal


def _findings(session: ProbeSession, proposal: Proposal, boundaries: list[Boundary]) -> Findings:
    shapes = [shape_at(session.trace, boundary) for boundary in boundaries]
    return Findings(boundaries, proposal.source, shapes, proposal.notes)


def _no_boundaries_error(model: nn.Module, tried: list[str], trace: Trace) -> NoBoundariesError:
    """The error for a model in which no proposal was verified.

    Args:
        tried: why each proposal failed; with none, the trace is searched for what prevents one.
    """
    name = type(model).__name__
    reasons = tried or ["no timm feature_info, no boundary rule and no chain of blocks found", *_obstacles(trace)]
    lines = "\n  ".join(reasons)
    if kept := [name for name, buffer in model.named_buffers() if buffer.requires_grad]:
        lines += (
            f"\n{len(kept)} buffers ({kept[0]}, ...) keep the graph of an earlier forward, as after a calibration with "
            "gradients; calibrate under torch.no_grad()"
        )
    return NoBoundariesError(
        f"no verified stage boundaries in {name}; pass boundaries=[Boundary(depth, name, module), ...] or register a "
        f"rule with @boundary_rule({name}). Tried:\n  {lines}"
    )


def _obstacles(trace: Trace) -> list[str]:
    """Why the modules that look like blocks, the most frequent class with children, are none."""
    calls = [c for c in trace.calls if any(c.module.children()) and type(c.module) not in CONTAINERS and c.path]
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
