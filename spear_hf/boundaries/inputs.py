"""What to call an unknown model with: as its own configuration says, else by its first convolution and a few tries."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from spear_hf.boundaries.probe import ProbeInputs
from spear_hf.errors import NoBoundariesError

_SIZES = (224, 32, 64, 256, 28, 96, 128, 299, 384)
_BATCH = 2
"""Two images: a model that squeezes its batch axis away breaks with one."""


def candidate_inputs(model: nn.Module, inputs: Tensor | Mapping[str, Any] | None = None) -> Iterator[ProbeInputs]:
    """What `model` may accept, most likely first; with `inputs` given, that alone.

    Tensors have memory and values: a probe with real weights takes them as they are, the meta device drops them.
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
    """Keyword arguments for a transformers classifier: an image, a sequence of pixel clusters, or a list of patches."""
    vision = getattr(config, "vision_config", None) or config
    if hasattr(config, "n_positions"):  # ImageGPT reads its pixels as tokens
        yield {name: torch.zeros(_BATCH, config.n_positions, dtype=torch.long)}
    if (
        "spatial_shapes" in inspect.signature(model.forward).parameters
    ):  # SigLIP 2 takes images of any aspect, as patches
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
    """(C, H, W) as timm's configuration states it, then as the first convolution allows."""
    for module in model.modules():
        cfg = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        size = cfg.get("input_size") if isinstance(cfg, Mapping) else getattr(cfg, "input_size", None)
        if size is not None:
            built_for = getattr(getattr(module, "patch_embed", None), "img_size", None)  # create_model(img_size=...)
            height, width = built_for if isinstance(built_for, (tuple, list)) else size[1:]
            yield (_in_channels(module) or size[0], height, width)  # create_model(in_chans=1) leaves the cfg as it was
            yield (size[0], height, width)
            break
    for side in _SIZES:
        yield (_in_channels(model) or 3, side, side)


def _in_channels(model: nn.Module) -> int | None:
    first = next((module for module in model.modules() if isinstance(module, _ConvNd)), None)
    return None if first is None else first.in_channels


def no_inputs_error(model: nn.Module, failures: list[str]) -> NoBoundariesError:
    """What was tried, and the way out."""
    tried = "\n  ".join(failures)
    return NoBoundariesError(
        f"{type(model).__name__} answered none of the probe inputs; pass inputs=, a batch that it accepts "
        f"(a tensor, or a dict of keyword arguments). Tried:\n  {tried}"
    )
