"""Convolutions with frozen weights: dx is a function of dy and the weight, so the input is not kept."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spear_hf.lean.flow import flows_through


class _Convolution(torch.autograd.Function):
    """y = conv(x); keeps the weight, which is there anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, function: Any, *settings: Any) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.settings, ctx.shape, ctx.dtype = settings, x.shape, x.dtype
        ctx.channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return function(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        like = dy.new_empty(1).expand(ctx.shape)  # never read: only its shape counts
        if ctx.channels_last:  # and its layout
            like = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        zero, mask = [0] * len(stride), [True, False, False]
        settings = (None, stride, padding, dilation, False, zero, groups, mask)
        dx = torch.ops.aten.convolution_backward(dy, like, weight.to(dy.dtype), *settings)[0]
        return dx.to(ctx.dtype), None, None, None, *([None] * len(ctx.settings))


def _lean(function: Any, dimensions: int) -> Callable[..., Any]:
    def convolution(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if not flows_through(input, weight, bias) or input.dim() != dimensions + 2:
            return NotImplemented
        dilation = _several(dilation, dimensions)
        if isinstance(padding, str):
            padding = _padding(padding, weight.shape[2:], dilation)
            if padding is None:
                return NotImplemented
        settings = (_several(stride, dimensions), _several(padding, dimensions), dilation, groups)
        return _Convolution.apply(input, weight, bias, function, *settings)

    return convolution


def _several(value: Any, dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


def _padding(name: str, kernel: torch.Size, dilation: list[int]) -> list[int] | None:
    """The numbers behind "valid" and "same"; None where "same" pads one side more than the other."""
    if name == "valid":
        return [0] * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return [t // 2 for t in total] if all(t % 2 == 0 for t in total) else None


CONVOLUTIONS = {
    torch.conv1d: _lean(torch.conv1d, 1),
    torch.conv2d: _lean(torch.conv2d, 2),
    torch.conv3d: _lean(torch.conv3d, 3),
}
