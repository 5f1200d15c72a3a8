"""The inputs that a probe tries on an unknown model: from its configuration, else from its first convolution."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_SIZES = (224, 32, 64, 256, 28, 96, 128, 299, 384)
_BATCH = 2
"""Two images, because a model that squeezes its output would lose a batch axis of one."""


@dataclass(frozen=True)
class ProbeInputs:
    """What a model is called with.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> ProbeInputs((torch.ones(2, 3, 8, 8),), {"labels": None}).first_image().describe()
    '(1, 3, 8, 8), labels=None'
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
        """The first image alone, for a cheaper check with weights; unchanged if the tensors have no common batch axis.

        The first axis counts as the batch axis if it has the same size in all tensors.
        """
        tensors = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor) and value.dim()]
        if len({value.shape[0] for value in tensors}) != 1:
            return self

        def cut(value: Any) -> Any:
            return value[:1] if isinstance(value, Tensor) and value.dim() else value

        return ProbeInputs(tuple(map(cut, self.args)), {name: cut(value) for name, value in self.kwargs.items()})

    def describe(self) -> str:
        """The shapes, as an error message shows them."""
        entries = [("", value) for value in self.args] + [(f"{name}=", value) for name, value in self.kwargs.items()]
        return ", ".join(f"{name}{tuple(v.shape) if isinstance(v, Tensor) else v!r}" for name, v in entries)

    def with_fresh_image(self) -> tuple[ProbeInputs, Tensor | None]:
        """These inputs with the first floating tensor replaced by a leaf that requires grad, and that leaf.

        The leaf is None if no tensor is floating (ImageGPT takes integers). The data flow then starts at the embedding.
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


def candidate_inputs(model: nn.Module, inputs: Tensor | Mapping[str, Any] | None = None) -> Iterator[ProbeInputs]:
    """What `model` may accept, the most likely first; only `inputs` if given.

    Tensors are on the CPU and hold values, the same in every call; `ProbeInputs.on` moves them to another device.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import candidate_inputs
    >>> next(candidate_inputs(torch.nn.Conv2d(1, 8, 3))).describe()
    '(2, 1, 224, 224)'
    """
    if isinstance(inputs, Tensor):
        yield ProbeInputs((inputs,))
    elif inputs is not None:
        yield ProbeInputs((), dict(inputs))
    else:
        config = getattr(model, "config", None)
        name = getattr(model, "main_input_name", None) if config is not None else None
        if isinstance(name, str):
            yield from (ProbeInputs((), kwargs) for kwargs in _of_transformers(model, config, name))
        else:
            yield from (ProbeInputs((_image(*shape),)) for shape in dict.fromkeys(_shapes(model)))


def _image(*shape: int) -> Tensor:
    return torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(0))


def _of_transformers(model: nn.Module, config: Any, name: str) -> Iterator[dict[str, Tensor]]:
    """Keyword arguments for a transformers classifier: an image, a sequence of tokens, or a list of patches."""
    vision = getattr(config, "vision_config", None) or config
    if hasattr(config, "n_positions"):  # ImageGPT takes pixels as integer tokens
        yield {name: torch.zeros(_BATCH, config.n_positions, dtype=torch.long)}
    if "spatial_shapes" in inspect.signature(model.forward).parameters:  # SigLIP 2 takes a list of patches
        side = int(vision.num_patches**0.5)
        yield {
            name: _image(side * side, vision.num_channels * vision.patch_size**2),
            "pixel_attention_mask": torch.ones(_BATCH, side * side, dtype=torch.long),
            "spatial_shapes": torch.full((_BATCH, 2), side),
        }
    size = getattr(vision, "image_size", None)
    channels = getattr(vision, "num_channels", None) or _in_channels(model) or 3
    if isinstance(size, (tuple, list)):
        yield {name: _image(channels, *size)}
    elif isinstance(size, int):
        yield {name: _image(channels, size, size)}
    for shape in _shapes(model):
        yield {name: _image(*shape)}


def _shapes(model: nn.Module) -> Iterator[tuple[int, int, int]]:
    """(C, H, W) as timm's configuration gives it, then with the channels of the first convolution and common sizes."""
    for module in model.modules():
        cfg = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        size = cfg.get("input_size") if isinstance(cfg, Mapping) else getattr(cfg, "input_size", None)
        if size is not None:
            # create_model(img_size=..., in_chans=...) changes the layers and leaves the configuration as it was.
            built_for = getattr(getattr(module, "patch_embed", None), "img_size", None)
            height, width = built_for if isinstance(built_for, (tuple, list)) else size[1:]
            yield (_in_channels(module) or size[0], height, width)
            yield (size[0], height, width)
            break
    for side in _SIZES:
        yield (_in_channels(model) or 3, side, side)


def _in_channels(model: nn.Module) -> int | None:
    first = next((module for module in model.modules() if isinstance(module, _ConvNd)), None)
    return None if first is None else first.in_channels
