"""What to call an unknown model with: sizes from its own configuration, else from its first convolution and tries."""

from __future__ import annotations

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
        yield from _from_configuration(model)


def _from_configuration(model: nn.Module) -> Iterator[ProbeInputs]:
    name = getattr(model, "main_input_name", None) if hasattr(model, "config") else None
    for shape in dict.fromkeys(_shapes(model)):
        image = torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(0))
        yield ProbeInputs((), {name: image}) if isinstance(name, str) else ProbeInputs((image,))


def _shapes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """(C, H, W) as timm's or transformers' configuration states it, then as the first convolution allows."""
    for module in model.modules():
        cfg = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        size = cfg.get("input_size") if isinstance(cfg, Mapping) else getattr(cfg, "input_size", None)
        if size is not None:
            built_for = getattr(getattr(module, "patch_embed", None), "img_size", None)  # create_model(img_size=...)
            sides = tuple(built_for) if isinstance(built_for, (tuple, list)) else tuple(size[1:])
            yield (
                _in_channels(module) or size[0],
                *sides,
            )  # create_model(in_chans=1) leaves the configuration as it was
            yield (size[0], *sides)
            break
    config = getattr(model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None)
    channels = getattr(vision, "num_channels", None) or _in_channels(model) or 3
    if isinstance(size, (tuple, list)):
        yield (channels, *size)
    elif isinstance(size, int):
        yield (channels, size, size)
    for side in _SIZES:
        yield (_in_channels(model) or channels, side, side)


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
