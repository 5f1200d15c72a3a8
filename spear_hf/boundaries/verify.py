"""Verify boundaries on the model: their modules exist, hold the right tensor, run once, and move the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.chain import check_chain, check_movement, check_reach, cut_forward
from spear_hf.boundaries.inputs import candidate_inputs
from spear_hf.boundaries.probe_forward import device_of, dtype_of, meta_replica
from spear_hf.boundaries.slots import Slot
from spear_hf.boundaries.trace import Trace, Value, channel_axis
from spear_hf.errors import (
    BoundaryNotFiredError,
    BoundaryNotFoundError,
    InputError,
    NoBoundariesError,
    UnsupportedOutputError,
)

_META = torch.device("meta")

_SMALL = 1_000_000
"""With fewer parameters the model itself is traced: its forward is faster than shape inference on a replica."""


class ProbeSession:
    """One model under examination: `trace`, the record of a probe forward, and checks. The model is left as it was.

    The trace and `check` run on a replica without weights if the model is large and can be copied; `verify` runs on
    the model itself.

    Args:
        model: the network, on any device, meta included.
        inputs: a batch that the model accepts; None derives one from the model.

    Raises:
        NoBoundariesError: the model answered none of the probe inputs.
        InputError: it answered with something that holds no logits.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.verify import ProbeSession
    >>> session = ProbeSession(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()), torch.ones(2, 3, 8, 8))
    >>> session.verify([Boundary(0, "stem", "0")])
    """

    trace: Trace

    def __init__(self, model: nn.Module, inputs: Tensor | Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.device, self.dtype = device_of(model), dtype_of(model)
        is_small = sum(parameter.numel() for parameter in model.parameters()) < _SMALL
        replica = None if self.device == _META or is_small else meta_replica(model)
        failures: list[str] = []
        for network, device in ((replica, _META), (model, self.device)):
            if network is not None and self._answers(network, device, inputs, failures):
                return
        tried = "\n  ".join(failures)
        raise NoBoundariesError(
            f"{type(model).__name__} answered none of the probe inputs; pass inputs=, a batch that it accepts "
            f"(a tensor, or a dict of keyword arguments). Tried:\n  {tried}"
        )

    def _answers(
        self,
        network: nn.Module,
        device: torch.device,
        inputs: Tensor | Mapping[str, Any] | None,
        failures: list[str],
    ) -> bool:
        for candidate in candidate_inputs(self.model, inputs):
            placed = candidate.on(device, self.dtype)
            try:
                self.trace = Trace(network, placed)
            except (InputError, NoBoundariesError):  # it answers without logits, or cannot be probed with any input
                raise
            except Exception as error:  # a wrong size may raise anything, anywhere in the model's code
                failures.append(f"{placed.describe()}: {type(error).__name__}: {str(error).strip()[:200]}")
                continue
            self.traced, self.placed, self.candidate = network, placed, candidate
            return True
        return False

    def check(self, boundaries: Sequence[Boundary]) -> None:
        """Raise a BoundaryError unless `boundaries` form a chain in the network of the trace."""
        check_chain(cut_forward(self.traced, boundaries, self.placed))

    def verify(self, boundaries: Sequence[Boundary], *, strict: bool = True) -> None:
        """Raise a BoundaryError unless every boundary fires once in the model itself and moves the logits.

        Args:
            strict: demand a chain too; otherwise the logits must only depend on every boundary.
        """
        result = cut_forward(self.model, boundaries, self.candidate.first_image().on(self.device, self.dtype))
        (check_chain if strict else check_reach)(result)
        check_movement(result)


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
        boundaries: what a user or a rule names; with `channels` 0 the probe finds channels and axis.
        inputs: a batch that the model accepts; None derives one from the model.
        strict: demand that the boundaries form a chain too, so that nothing reaches the logits around them.

    Raises:
        BoundaryNotFoundError: no module of that path.
        BoundaryNotFiredError: a module that runs zero or several times in one forward.
        UnsupportedOutputError: no tensor at `output_slot`, or another number of channels there.
        NoBoundariesError: the logits do not depend on a boundary, or (strict) depend on something around it.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary, verify_boundaries
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> verify_boundaries(model, [Boundary(0, "stem", "0")], torch.ones(2, 3, 8, 8))[0].channels
    8
    """
    session = ProbeSession(model, inputs)
    completed = [_complete(session.trace, boundary) for boundary in boundaries]
    session.verify(completed, strict=strict)
    return sorted(completed, key=lambda boundary: (boundary.depth, boundary.part))


def _complete(trace: Trace, boundary: Boundary) -> Boundary:
    """`boundary` with the channels and axis that the probe saw there.

    Raises:
        UnsupportedOutputError: `boundary` has other channels already.
    """
    value = value_at(trace, boundary)
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
    """The shape of a boundary's tensor in the traced forward.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace
    >>> from spear_hf.boundaries.verify import shape_at
    >>> trace = Trace(torch.nn.Sequential(torch.nn.Flatten()), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> shape_at(trace, Boundary(0, "stem", "0"))
    (1, 12)
    """
    return tuple(value_at(trace, boundary).shape)


def value_at(trace: Trace, boundary: Boundary) -> Value:
    """The tensor that the traced forward had at a boundary."""
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
