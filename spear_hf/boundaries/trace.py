"""The record of one probe forward: the inputs and outputs of every module, as edges of the data flow."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from spear_hf.backbones.tensors import quantized_layers
from spear_hf.boundaries.graph import DataFlow, Edge, edge_of
from spear_hf.boundaries.inputs import ProbeInputs
from spear_hf.boundaries.probe_forward import forward, held_still, tensors_in
from spear_hf.boundaries.slots import Slot
from spear_hf.errors import NoBoundariesError

_NOT_DATA = ("hidden_states", "attentions")
"""Fields of a ModelOutput that record intermediate tensors; replacing these changes no logits."""

_CHANNELS_FIRST = (_ConvNd, _BatchNorm, nn.GroupNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


@dataclass(frozen=True)
class Value:
    """One tensor as one module saw it: its slot, its identity at that moment, and its shape.

    >>> import torch
    >>> from spear_hf.boundaries.graph import edge_of
    >>> from spear_hf.boundaries.trace import Value
    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> Value((0,), edge_of(x), x.shape).shape
    torch.Size([2, 3])
    """

    slot: Slot
    edge: Edge
    shape: torch.Size


@dataclass(frozen=True)
class Call:
    """One call of one module.

    Args:
        path, module: the module, and its path in the model.
        inputs, outputs: its tensors that depend on the image; others are left out.
        began, ended: when, as numbers of the trace's hook events: a call inside another began later and ended earlier.

    >>> import torch
    >>> from spear_hf.boundaries.trace import Call
    >>> Call("fc", torch.nn.Linear(2, 2), (), (), began=1, ended=2).path
    'fc'
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
    """The hooks of every module; edges are read at once, as a later in-place ReLU gives the tensor another edge."""

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


def _no_gradient(model: nn.Module) -> str:
    integer = quantized_layers(model)
    what = f"no gradient comes through {type(model).__name__}, so that RSPs in it could not learn: "
    if not integer:
        return what + "its forward runs under no_grad or detaches; take that off"
    name, library = next(iter(integer.items()))
    return what + (
        f"its layer {name} is quantised by {library} for inference alone; learn on the float model, or quantise the "
        "weights alone (torchao's Int8WeightOnlyConfig, quanto)"
    )


class Trace:
    """What one forward of `model` did: `calls` in the order they ended, `first_seen` (edge -> time) and the data flow.

    Args:
        model: the network; it is held still during the forward and left as it was.
        inputs: what the model is called with, on the model's device.

    Raises:
        NoBoundariesError: the logits have no gradient.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace
    >>> trace = Trace(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> [call.path for call in trace.calls], trace.exit_of("0").shape
    (['0', '1', ''], torch.Size([1, 12]))
    """

    def __init__(self, model: nn.Module, inputs: ProbeInputs) -> None:
        self.model = model
        scripted = torch.jit.ScriptModule  # takes no hook, so that no boundary is in or around it
        self.modules = {path: m for path, m in model.named_modules() if not isinstance(m, scripted)}
        recorder = _Recorder({module: path for path, module in self.modules.items()})
        with held_still(model), ExitStack() as stack:
            for module in self.modules.values():
                stack.callback(module.register_forward_pre_hook(recorder.enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(recorder.leave, with_kwargs=True).remove)
            logits, image = forward(model, inputs)
        if not logits.requires_grad:
            raise NoBoundariesError(_no_gradient(model))
        self.calls, self.first_seen = recorder.calls, recorder.first_seen
        self.flow = DataFlow(logits, image)

    @cached_property
    def calls_of(self) -> dict[str, list[Call]]:
        """path -> the calls of that module."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.path, []).append(call)
        return found

    @cached_property
    def emitted_by(self) -> dict[Edge, list[tuple[Call, Value]]]:
        """tensor -> the calls that returned it without having taken it, innermost first."""
        found: dict[Edge, list[tuple[Call, Value]]] = {}
        for call in self.calls:
            taken = {value.edge for value in call.inputs}
            for value in call.outputs:
                if value.edge not in taken:
                    found.setdefault(value.edge, []).append((call, value))
        return found

    @cached_property
    def seen_by(self) -> dict[Edge, list[tuple[Call, Value, bool]]]:
        """tensor -> every (call, value, whether it was an output) in which it was taken or returned."""
        found: dict[Edge, list[tuple[Call, Value, bool]]] = {}
        for call in self.calls:
            for value in call.inputs:
                found.setdefault(value.edge, []).append((call, value, False))
            for value in call.outputs:
                found.setdefault(value.edge, []).append((call, value, True))
        return found

    def entry_of(self, path: str) -> Value | None:
        """The input of the module at `path` that carries everything; None without one, or unless it runs once."""
        return self._first_cut(path, False)

    def exit_of(self, path: str) -> Value | None:
        """The output of the module at `path` that carries everything; None without one, or unless it runs once."""
        return self._first_cut(path, True)

    def bypass_of(self, edge: Edge) -> str:
        """How an error names the bypass of `edge`: ": 'module' reaches the logits beside it"; "" for a cut.

        It names the last module that reaches the logits past `edge` and is not computed from it.
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


def channel_axis(trace: Trace, edge: Edge, shape: torch.Size) -> int:
    """The axis of a tensor that holds its channels: 1 for NCHW, -1 for NHWC and B x N x C.

    If two of a map's sides are equal, the third one is the channels. Otherwise the layers that take or return the
    tensor decide: a convolution has its channels on axis 1, a Linear on the last. Without such a layer a map is NCHW
    and a sequence B x N x C.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace, channel_axis
    >>> trace = Trace(torch.nn.Flatten(2), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> [channel_axis(trace, trace.flow.image, torch.Size(shape)) for shape in ((1, 3, 2, 2), (1, 2, 2, 3), (1, 4, 3))]
    [1, -1, -1]
    """
    if len(shape) == 2:
        return -1
    if len(shape) == 4:
        _, a, b, c = shape
        if a != b and b == c:
            return 1
        if a == b and b != c:
            return -1
    return _axis_of_layers(trace, edge, shape) or (1 if len(shape) == 4 else -1)


def _axis_of_layers(trace: Trace, edge: Edge, shape: torch.Size) -> int | None:
    """The channel axis of the first layer that takes or returns the tensor and has its width; None without one."""
    for call, _, is_output in trace.seen_by.get(edge, []):
        width = _width(call.module, is_output)
        if isinstance(call.module, _CHANNELS_FIRST) and shape[1] == width:
            return 1
        if isinstance(call.module, _CHANNELS_LAST) and shape[-1] == width:
            return -1
    return None


def _width(module: nn.Module, is_output: bool) -> int | None:
    """How many channels a layer takes (or returns)."""
    if isinstance(module, _ConvNd):
        return module.out_channels if is_output else module.in_channels
    if isinstance(module, nn.Linear):
        return module.out_features if is_output else module.in_features
    if isinstance(module, nn.LayerNorm):
        return module.normalized_shape[0] if len(module.normalized_shape) == 1 else None
    return getattr(module, "num_features", getattr(module, "num_channels", None))


def num_positions(trace: Trace, value: Value) -> int:
    """How many positions (pixels or tokens) a tensor has for one image; it is what tells stages apart.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace, num_positions
    >>> trace = Trace(torch.nn.Conv2d(3, 8, 2, 2), ProbeInputs((torch.ones(1, 3, 8, 8),)))
    >>> num_positions(trace, trace.exit_of(""))
    16
    """
    numbers = 1
    for size in value.shape[1:]:
        numbers *= size
    return numbers // value.shape[channel_axis(trace, value.edge, value.shape)]
