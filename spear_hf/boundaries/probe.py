"""One forward that looks and leaves no trace: the inputs a model takes, a weightless replica, a model held still."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.slots import Slot

_STRUCTURE = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class ProbeInputs:
    """What a model is called with. `image` names the one entry that the data flow starts from.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def on(self, device: torch.device, dtype: torch.dtype) -> ProbeInputs:
        """The same inputs on `device`, floating tensors cast to `dtype`."""

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(device, dtype if value.is_floating_point() else None)

        return ProbeInputs(tuple(map(move, self.args)), {name: move(value) for name, value in self.kwargs.items()})

    def first_image(self) -> ProbeInputs:
        """These inputs cut to one image where all tensors share their first axis: enough for a check with weights."""
        tensors = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor) and value.dim()]
        if len({value.shape[0] for value in tensors}) != 1:
            return self

        def cut(value: Any) -> Any:
            return value[:1] if isinstance(value, Tensor) and value.dim() else value

        return ProbeInputs(tuple(map(cut, self.args)), {name: cut(value) for name, value in self.kwargs.items()})

    def describe(self) -> str:
        """The shapes, for an error message."""
        entries = [("", value) for value in self.args] + [(f"{name}=", value) for name, value in self.kwargs.items()]
        return ", ".join(f"{name}{tuple(v.shape) if isinstance(v, Tensor) else v!r}" for name, v in entries)

    def with_fresh_image(self) -> tuple[ProbeInputs, Tensor | None]:
        """These inputs with the first floating tensor replaced by a leaf that requires grad, and that leaf.

        The leaf is None where the model takes only integers (ImageGPT): its data flow starts at its embedding.
        """
        for i, value in enumerate(self.args):
            if isinstance(value, Tensor) and value.is_floating_point():
                leaf = value.detach().clone().requires_grad_()
                return ProbeInputs((*self.args[:i], leaf, *self.args[i + 1 :]), self.kwargs), leaf
        for name, value in self.kwargs.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                leaf = value.detach().clone().requires_grad_()
                return ProbeInputs(self.args, {**self.kwargs, name: leaf}), leaf
        return self, None


class _EmbeddingSource:
    """Makes the output of the first embedding the leaf that an integer input cannot be."""

    leaf: Tensor | None = None

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if self.leaf is not None:
            return None
        self.leaf = output.detach().clone().requires_grad_()
        return self.leaf


def tensors_in(value: Any, slot: Slot = ()) -> Iterator[tuple[Slot, Tensor]]:
    """Every tensor inside nested tuples, lists, mappings and ModelOutputs, with the slot where it sits."""
    if isinstance(value, Tensor):
        yield slot, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from tensors_in(inner, (*slot, name))
    elif isinstance(value, (tuple, list)):
        for i, inner in enumerate(value):
            yield from tensors_in(inner, (*slot, i))


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, a ModelOutput's `logits`, or the first tensor of a tuple."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(output, Tensor):
        return output
    first = next(tensors_in(output), None)
    if first is None:
        raise TypeError(f"the model returned a {type(output).__name__} without a tensor; a classifier returns logits")
    return first[1]


def forward(model: nn.Module, inputs: ProbeInputs) -> tuple[Tensor, Tensor]:
    """The logits of one forward, and the leaf (the image) that their graph starts from."""
    inputs, image = inputs.with_fresh_image()
    source = _EmbeddingSource()
    with ExitStack() as stack:
        if image is None:
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_hook(source, prepend=True).remove)
        logits = logits_of(model(*inputs.args, **inputs.kwargs))
    image = image if image is not None else source.leaf
    if image is None:
        raise TypeError("the probe found no floating input and no embedding to start from; pass inputs=")
    return logits, image


def device_of(model: nn.Module) -> torch.device:
    """Where the model takes its image: the first weight's device, or accelerate's where the weights are offloaded."""
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type that the model takes its image in: that of its first floating weight."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def meta_replica(model: nn.Module) -> nn.Module | None:
    """A copy of `model` whose tensors have shapes and no memory, or None where it cannot be copied.

    Every search runs on the replica: no arithmetic, and nothing that a forward may cache reaches the user's model.
    """
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return None  # accelerate moves weights inside the forward: only the model itself can be asked
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    for module in model.modules():
        plain = {name: value for name, value in vars(module).items() if name not in _STRUCTURE}
        for _, tensor in tensors_in([plain, dict(module._buffers)]):
            memo.setdefault(id(tensor), tensor.detach().to("meta"))
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # locks, generators, activations that a user's hook keeps: any class may refuse
        return None


@contextmanager
def held_still(model: nn.Module) -> Iterator[None]:
    """In evaluation mode with frozen weights; on leaving, every flag, buffer, cache and random state is as before.

    Gradients must be enabled around it. Flags are set one by one: some models override `train()` and drop caches.
    """
    modules = list(model.modules())
    training = [module.training for module in modules]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    attributes = [_shallow(module) for module in modules]
    buffers = [(b, b._version, b.clone()) for b in model.buffers() if not b.is_meta and not b.is_inference()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            for module in modules:
                module.training = False
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for buffer, version, value in buffers:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(value)
        for module, before in zip(modules, attributes, strict=True):
            _put_back(module, before)
        for module, flag in zip(modules, training, strict=True):
            module.training = flag


def _shallow(module: nn.Module) -> dict[str, Any]:
    """A module's attributes, with one level of its dictionaries and lists: where models keep what they cache."""
    kept = {}
    for name, value in vars(module).items():
        kept[name] = (value, copy.copy(value) if type(value) in (dict, list) and name not in _STRUCTURE else None)
    return kept


def _put_back(module: nn.Module, before: dict[str, Any]) -> None:
    for name in vars(module).keys() - before.keys():
        del vars(module)[name]
    for name, (value, content) in before.items():
        vars(module)[name] = value
        if isinstance(content, dict):
            value.clear()
            value.update(content)
        elif isinstance(content, list):
            value[:] = content
