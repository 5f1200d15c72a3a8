"""Hold boundaries against the model: where they sit, how many channels they have, that they fire and what they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.axis import channel_axis
from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.session import ProbeSession
from spear_hf.boundaries.slots import Slot
from spear_hf.boundaries.trace import Trace, Value
from spear_hf.errors import BoundaryNotFiredError, BoundaryNotFoundError, UnsupportedOutputError


@torch.inference_mode(False)
@torch.enable_grad()
def verify_boundaries(
    model: nn.Module,
    boundaries: Sequence[Boundary],
    inputs: Tensor | Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
) -> list[Boundary]:
    """The given boundaries with `channels` and `channel_axis` filled in, by depth; the model is left as it was.

    Args:
        model: the network.
        boundaries: what a user or a rule names; `channels` 0 means that the probe is to find channels and axis.
        inputs: a batch that the model accepts, where the probe cannot derive one.
        strict: also demand that they form a chain, so that nothing reaches the logits around them.

    Raises:
        BoundaryNotFoundError: no module of that path.
        BoundaryNotFiredError: a module that runs zero or several times in one forward.
        UnsupportedOutputError: no tensor at `output_slot`, or another number of channels there.
        NoBoundariesError: the logits do not depend on a boundary, or (strict) depend on something around it.
    """
    session = ProbeSession(model, inputs)
    completed = [complete(session.trace, boundary) for boundary in boundaries]
    session.verify(completed, strict=strict)
    return sorted(completed, key=lambda boundary: (boundary.depth, boundary.part))


def complete(trace: Trace, boundary: Boundary) -> Boundary:
    """`boundary` with the channels and axis that the probe saw at its place; raises where it contradicts them."""
    value = _value_at(trace, boundary)
    if boundary.channels == 0:
        axis = channel_axis(trace, value.edge, value.shape)
        return replace(boundary, channels=value.shape[axis], channel_axis=axis)
    axis = boundary.channel_axis
    found = value.shape[axis] if -len(value.shape) <= axis < len(value.shape) else None
    if found != boundary.channels:
        raise UnsupportedOutputError(
            f"boundary {boundary.name!r} says {boundary.channels} channels on axis {axis}, but {boundary.module} has a "
            f"tensor of shape {tuple(value.shape)}; leave channels=0 and the probe fills in channels and axis"
        )
    return boundary


def shape_at(trace: Trace, boundary: Boundary) -> tuple[int, ...]:
    """The shape of a boundary's tensor in the probe."""
    return tuple(_value_at(trace, boundary).shape)


def _value_at(trace: Trace, boundary: Boundary) -> Value:
    """The tensor that the probe saw at the place that `boundary` names."""
    if boundary.module not in trace.modules:
        close = get_close_matches(boundary.module, trace.modules, n=3)
        raise BoundaryNotFoundError(
            f"boundary {boundary.name!r} names module {boundary.module!r}, but {type(trace.model).__name__} has no "
            f"such module; named_modules() lists them" + (f" (close: {', '.join(close)})" if close else "")
        )
    calls = trace.calls_of.get(boundary.module, [])
    if len(calls) != 1:
        raise BoundaryNotFiredError(
            f"boundary {boundary.name!r} ({boundary.module}) fires {len(calls)} times in one forward, an RSP must act "
            f"exactly once; choose a module that runs once"
        )
    values = calls[0].outputs if boundary.where == "out" else calls[0].inputs
    slot: Slot = boundary.output_slot or (() if boundary.where == "out" else (0,))
    for value in values:
        if value.slot == slot:
            return value
    slots = ", ".join(str(value.slot) for value in values) or "none"
    raise UnsupportedOutputError(
        f"boundary {boundary.name!r} ({boundary.module}) has no tensor that depends on the image at slot {slot}; "
        f"slots that do: {slots}"
    )
