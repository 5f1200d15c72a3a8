"""One forward of a probe, which leaves the model as it was: a replica without weights, or the model held still."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.inputs import ProbeInputs
from spear_hf.boundaries.slots import Slot
from spear_hf.utils.batch import no_logits

_STRUCTURE = ("_parameters", "_buffers", "_modules")
"""The attributes of a module that hold its tensors and children, which a probe treats apart from all others."""


class _EmbeddingSource:
    """A hook that replaces the first embedding's output by a leaf, because an integer input cannot require grad."""

    leaf: Tensor | None = None

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if self.leaf is not None:
            return None
        self.leaf = output.detach().clone().requires_grad_()
        return self.leaf


def tensors_in(value: Any, slot: Slot = ()) -> Iterator[tuple[Slot, Tensor]]:
    """Every tensor inside nested tuples, lists, mappings and ModelOutputs, with its slot.

    >>> import torch
    >>> from spear_hf.boundaries.probe_forward import tensors_in
    >>> list(tensors_in({"state": [None, torch.ones(1)]}))
    [(('state', 1), tensor([1.]))]
    """
    if isinstance(value, Tensor):
        yield slot, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from tensors_in(inner, (*slot, name))
    elif isinstance(value, (tuple, list)):
        for i, inner in enumerate(value):
            yield from tensors_in(inner, (*slot, i))


def _logits_in(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, a ModelOutput's `logits`, or the first tensor of a tuple."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(output, Tensor):
        return output
    found = list(tensors_in(output))
    if len(found) != 1:  # which of several it is would be a guess
        raise no_logits(output)
    return found[0][1]


def forward(model: nn.Module, inputs: ProbeInputs) -> tuple[Tensor, Tensor]:
    """The logits of one forward, and the leaf (the image) that their graph starts from.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.probe_forward import forward
    >>> logits, image = forward(torch.nn.Flatten(), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> logits.shape, image.requires_grad
    (torch.Size([1, 12]), True)
    """
    inputs, image = inputs.with_fresh_image()
    source = _EmbeddingSource()
    with ExitStack() as stack:
        if image is None:
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_hook(source, prepend=True).remove)
        logits = _logits_in(model(*inputs.args, **inputs.kwargs))
    image = image if image is not None else source.leaf
    if image is None:
        raise TypeError("the probe found no floating input and no embedding to start from; pass inputs=")
    return logits, image


def device_of(model: nn.Module) -> torch.device:
    """The device on which the model expects its image: that of its first weight, or accelerate's execution device.

    >>> import torch
    >>> from spear_hf.boundaries.probe_forward import device_of
    >>> device_of(torch.nn.Linear(2, 2, device="meta"))
    device(type='meta')
    """
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype in which the model expects its image: that of its first floating weight.

    >>> import torch
    >>> from spear_hf.boundaries.probe_forward import dtype_of
    >>> dtype_of(torch.nn.Linear(2, 2, dtype=torch.float64))
    torch.float64
    """
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def meta_replica(model: nn.Module) -> nn.Module | None:
    """A copy of `model` on the meta device, whose tensors have shapes but no memory; None if it cannot be copied.

    A search runs on the replica: it computes no values, and whatever its forward caches is not cached in the model.

    >>> import torch
    >>> from spear_hf.boundaries.probe_forward import meta_replica
    >>> meta_replica(torch.nn.Linear(2, 2)).weight
    Parameter containing:
    tensor(..., device='meta', size=(2, 2))
    """
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return None  # accelerate moves weights inside the forward, which only the model itself can do
    # deepcopy takes what it finds in memo for a finished copy: no weight is copied, and shared weights stay shared.
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    for module in model.modules():
        plain = {name: value for name, value in vars(module).items() if name not in _STRUCTURE}
        for _, tensor in tensors_in([plain, dict(module._buffers)]):
            memo.setdefault(id(tensor), tensor.detach().to("meta"))
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # locks, generators, tensors with a graph in a user's hook: anything may refuse to be copied
        return None


@contextmanager
def held_still(model: nn.Module) -> Iterator[None]:
    """A context with `model` in evaluation mode and its weights frozen; afterwards the model is exactly as before.

    Restored are the flags, buffers, cached attributes and random state. Gradients must be enabled around it.

    >>> import torch
    >>> from spear_hf.boundaries.probe_forward import held_still
    >>> model = torch.nn.Linear(2, 2)
    >>> with held_still(model):
    ...     model.training, model.weight.requires_grad
    (False, False)
    >>> model.training, model.weight.requires_grad
    (True, True)
    """
    modules = list(model.modules())
    training = [module.training for module in modules]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    attributes = [_shallow(module) for module in modules]
    buffers = [(b, b._version, b.clone()) for b in model.buffers() if not b.is_meta and not b.is_inference()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            for module in modules:  # not model.eval(): some models override train() and drop their caches there
                module.training = False
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for buffer, version, value in buffers:
            if buffer._version != version:  # a copy raises the version, and a graph that saved the buffer fails then
                with torch.no_grad():
                    buffer.copy_(value)
        for module, before in zip(modules, attributes, strict=True):
            _put_back(module, before)
        for module, flag in zip(modules, training, strict=True):
            module.training = flag


def _shallow(module: nn.Module) -> dict[str, Any]:
    """A module's attributes, with copies of its dictionaries and lists one level deep: models cache in these."""
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
