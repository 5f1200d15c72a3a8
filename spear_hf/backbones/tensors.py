"""What is in the state of a base: quantised weights, by which library, and weights that accelerate has off-loaded."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

LIBRARIES = {"torchao": "torchao", "optimum": "quanto", "bitsandbytes": "bitsandbytes"}
"""Package of the class of a tensor or parameter -> what its users call it."""


def quantized_layers(model: nn.Module) -> dict[str, str]:
    """Path of each layer with quantised weights -> the library that quantised them.

    >>> quantized_layers(nn.Sequential(nn.Linear(3, 2)))
    {}
    """
    return {name: by for name, module in model.named_modules() if (by := _quantized_by(module)) is not None}


def quantization_of(model: nn.Module) -> str | None:
    """The libraries that quantised weights of a model, or None.

    >>> quantization_of(nn.Linear(3, 2)) is None
    True
    """
    return ", ".join(sorted(set(quantized_layers(model).values()))) or None


def _quantized_by(layer: nn.Module) -> str | None:
    home = type(layer).__module__
    if home.startswith("torch.") and "quantized" in home:  # what quantize_dynamic and convert leave
        return "torch.ao"
    for parameter in layer.parameters(recurse=False):
        package = type(parameter).__module__.split(".")[0]
        if package in LIBRARIES:
            return LIBRARIES[package]
        if parameter.is_quantized:
            return "torch.ao"
    return None


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each tensor in a model's state; packed weights are several, off-loaded ones are fetched.

    >>> [name for name, _ in tensors_of(nn.Linear(3, 2))]
    ['weight', 'bias']
    """
    for name, value in _tensors_in(model.state_dict()):
        yield name, _fetched(model, name, value) if value.is_meta else value


def _fetched(model: nn.Module, name: str, value: Tensor) -> Tensor:
    """A weight from where accelerate keeps it between forwards; itself where it is nowhere."""
    path, _, own = name.rpartition(".")
    hook = getattr(model.get_submodule(path), "_hf_hook", None)
    for each in getattr(hook, "hooks", (hook,)):
        kept = getattr(each, "weights_map", None)
        if kept is not None and own in kept:
            return kept[own]
    return value


def _tensors_in(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, (tuple, list)):  # torch.ao packs weight and bias together
            yield from _tensors_in({f"{name}.{i}": part for i, part in enumerate(value)})


def numbers_in(tensor: Tensor) -> Tensor:
    """What a tensor stands for: itself, or the floats of a quantised one.

    >>> import torch
    >>> numbers_in(torch.ones(2))
    tensor([1., 1.])
    """
    tensor = tensor.detach()
    is_quantized = tensor.is_quantized or type(tensor).__module__.split(".")[0] in LIBRARIES
    return tensor.dequantize() if is_quantized else tensor
