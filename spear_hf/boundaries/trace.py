"""The record of one probe forward: which tensors went into and came out of every module, as nodes of the data flow."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from spear_hf.boundaries.graph import DataFlow, Edge, edge_of
from spear_hf.boundaries.probe import ProbeInputs, forward, held_still, tensors_in
from spear_hf.boundaries.slots import Slot

_NOT_DATA = ("hidden_states", "attentions")
"""Fields of a ModelOutput that list what has passed; replacing them steers nothing."""


@dataclass(frozen=True)
class Value:
    """One tensor as one module saw it: where it sat, what it was at that moment, and its shape."""

    slot: Slot
    edge: Edge
    shape: torch.Size


@dataclass(frozen=True)
class Call:
    """One call of one module, from `began` to `ended` on the probe's clock of hook events.

    Values without a path from the image are left out.
    """

    path: str
    module: nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    began: int
    ended: int


def _values(container: Any) -> tuple[Value, ...]:
    return tuple(
        Value(slot, edge_of(tensor), tensor.shape)
        for slot, tensor in tensors_in(container)
        if tensor.requires_grad and not any(name in _NOT_DATA for name in slot)
    )


class _Recorder:
    """Hooks on every module. Values are read at hook time: a later in-place ReLU would give the tensor another edge."""

    def __init__(self, paths: dict[nn.Module, str]) -> None:
        self.paths = paths
        self.calls: list[Call] = []
        self.first_seen: dict[Edge, int] = {}
        self._clock = 0
        self._open: list[tuple[tuple[Value, ...], int]] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = _values(args) + _values(kwargs)
        self._open.append((inputs, self._tick(inputs)))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs = _values(output)
        inputs, began = self._open.pop()
        self.calls.append(Call(self.paths[module], module, inputs, outputs, began, self._tick(outputs)))

    def _tick(self, values: tuple[Value, ...]) -> int:
        self._clock += 1
        for value in values:
            self.first_seen.setdefault(value.edge, self._clock)
        return self._clock


class Trace:
    """What one forward of `model` did.

    Args:
        model: it is held still during the forward and left as it was.
        inputs: what it is called with, on the device it computes on.
    """

    def __init__(self, model: nn.Module, inputs: ProbeInputs) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        recorder = _Recorder({module: path for path, module in self.modules.items()})
        with held_still(model), ExitStack() as stack:
            for module in self.modules.values():
                stack.callback(module.register_forward_pre_hook(recorder.enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(recorder.leave, with_kwargs=True).remove)
            logits, image = forward(model, inputs)
        self.calls, self.first_seen = recorder.calls, recorder.first_seen
        self.logits_shape = logits.shape
        self.flow = DataFlow(logits, image)

    @cached_property
    def calls_of(self) -> dict[str, list[Call]]:
        """The calls of each module, by path."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.path, []).append(call)
        return found

    @cached_property
    def emitted_by(self) -> dict[Edge, list[tuple[Call, Value]]]:
        """For each tensor the calls that returned it without having been given it, innermost first."""
        found: dict[Edge, list[tuple[Call, Value]]] = {}
        for call in self.calls:
            taken = {value.edge for value in call.inputs}
            for value in call.outputs:
                if value.edge not in taken:
                    found.setdefault(value.edge, []).append((call, value))
        return found

    @cached_property
    def seen_by(self) -> dict[Edge, list[tuple[Call, Value, bool]]]:
        """For each tensor every (call, value, was it an output) that touched it."""
        found: dict[Edge, list[tuple[Call, Value, bool]]] = {}
        for call in self.calls:
            for value in call.inputs:
                found.setdefault(value.edge, []).append((call, value, False))
            for value in call.outputs:
                found.setdefault(value.edge, []).append((call, value, True))
        return found

    def entry_of(self, path: str) -> Value | None:
        """What enters the module at `path` and carries everything, or None."""
        return self._first_cut(path, False)

    def exit_of(self, path: str) -> Value | None:
        """What leaves the module at `path` and carries everything, or None."""
        return self._first_cut(path, True)

    def bypass_of(self, edge: Edge) -> str:
        """ ": 'module' reaches the logits beside it", for the last module that does and is not computed from `edge`.

        "" where `edge` carries everything.
        """
        around = self.flow.around(edge)
        beside = [call.path for call in self.calls if call.path and any(v.edge in around for v in call.outputs)]
        what = repr(beside[-1]) if beside else "a function of the image"
        return f": {what} reaches the logits beside it" if around else ""

    def _first_cut(self, path: str, output: bool) -> Value | None:
        calls = self.calls_of.get(path, [])
        if len(calls) != 1:
            return None
        cuts = [v for v in (calls[0].outputs if output else calls[0].inputs) if self.flow.is_cut(v.edge)]
        return max(cuts, key=lambda value: self.flow.rank_of(value.edge), default=None)
