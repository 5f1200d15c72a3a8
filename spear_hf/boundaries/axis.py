"""Which axis of a boundary tensor holds its channels, by evidence from the shape and from the layers that touch it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from spear_hf.boundaries.graph import Edge
from spear_hf.boundaries.trace import Trace

_CHANNELS_FIRST = (_ConvNd, _BatchNorm, nn.GroupNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


def channel_axis(trace: Trace, edge: Edge, shape: torch.Size) -> int:
    """1 for NCHW, -1 for NHWC and B x N x C.

    A map with two equal sides has its channels on the third. Otherwise the layers that take or return the tensor tell:
    a convolution reads axis 1, a Linear the last. Without either, maps are NCHW and sequences B x N x C.
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
    """The axis that a layer touching the tensor names, where its width agrees; None without such a layer."""
    for call, _, is_output in trace.seen_by.get(edge, []):
        width = _width(call.module, is_output)
        if isinstance(call.module, _CHANNELS_FIRST) and shape[1] == width:
            return 1
        if isinstance(call.module, _CHANNELS_LAST) and shape[-1] == width:
            return -1
    return None


def _width(module: nn.Module, is_output: bool) -> int | None:
    if isinstance(module, _ConvNd):
        return module.out_channels if is_output else module.in_channels
    if isinstance(module, nn.Linear):
        return module.out_features if is_output else module.in_features
    if isinstance(module, nn.LayerNorm):
        return module.normalized_shape[0] if len(module.normalized_shape) == 1 else None
    return getattr(module, "num_features", getattr(module, "num_channels", None))
