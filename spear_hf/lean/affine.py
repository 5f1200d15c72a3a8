"""Layers that are affine in their input, y = A x + b with A and b frozen: dx = A^T dy, for which x need not be kept.

Convolutions, linear layers and batch norms in evaluation mode.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through, scatter_tokens, tokens_with_gradient


class _Convolution(torch.autograd.Function):
    """y = W * x + b. Backward: dx = the transposed convolution of dy with W."""

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
        # convolution_backward takes x as an argument. Without a gradient of the weight it reads x's shape and layout
        # and none of its values, so one number expanded to the shape serves. It cannot be given the layout
        # channels_last (its strides are 0), which takes a tensor of that size, never written and freed at once.
        stand_in = dy.new_empty(1).expand(ctx.shape)
        if ctx.channels_last:
            stand_in = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        no_output_padding, only_dx = [0] * len(stride), [True, False, False]
        settings = (None, stride, padding, dilation, False, no_output_padding, groups, only_dx)
        # Under autocast y and dy are in half precision, x and the weight in fp32.
        dx = torch.ops.aten.convolution_backward(dy, stand_in, weight.to(dy.dtype), *settings)[0]
        return dx.to(ctx.dtype), None, None, None, *([None] * len(ctx.settings))


def _convolution(function: Any, dimensions: int) -> Callable[..., Any]:
    """The replacement of torch.conv1d, conv2d or conv3d."""

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
        dilation = _for_each_axis(dilation, dimensions)
        if isinstance(padding, str):
            padding = _named_padding(padding, weight.shape[2:], dilation)
            if padding is None:
                return NotImplemented
        settings = (_for_each_axis(stride, dimensions), _for_each_axis(padding, dimensions), dilation, groups)
        return _Convolution.apply(input, weight, bias, function, *settings)

    return convolution


def _for_each_axis(value: Any, dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


def _named_padding(name: str, kernel: torch.Size, dilation: list[int]) -> list[int] | None:
    """The padding that "valid" and "same" stand for; None where "same" pads one side more than the other."""
    if name == "valid":
        return [0] * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return [t // 2 for t in total] if all(t % 2 == 0 for t in total) else None


class _Linear(torch.autograd.Function):
    """y = x W^T + b for x of (..., N, C). Backward: dx = dy W, computed for the tokens whose dy is not zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weight,) = ctx.saved_tensors
        tokens = tokens_with_gradient(dy)
        if tokens is None:
            return dy @ weight, None, None
        return scatter_tokens(dy.index_select(-2, tokens) @ weight, tokens, dy.shape[-2]), None, None


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    # PyTorch's own linear layer keeps no x for a frozen weight. The gain is the choice of tokens, made on a CPU alone.
    if not flows_through(input, weight, bias) or input.dim() < 3 or input.device.type != "cpu":
        return NotImplemented
    # A subclass of Tensor (a quantised weight) brings its own F.linear; under autocast the product has another dtype.
    if type(weight) not in (Tensor, nn.Parameter) or weight.dtype != input.dtype or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    return _Linear.apply(input, weight, bias)


class _BatchNorm(torch.autograd.Function):
    """y = weight (x - mean) / sqrt(variance + eps) + bias. Backward: dx = weight / sqrt(variance + eps) dy.

    Mean and variance are constants in evaluation mode, so dx is dy times one number for each channel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, weight: Any, bias: Any, eps: float) -> Tensor:
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(scale if weight is None else scale * weight)
        ctx.dtype = x.dtype
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (scale,) = ctx.saved_tensors
        dx = dy * scale.to(dy.dtype).view(1, -1, *[1] * (dy.dim() - 2))
        return dx.to(ctx.dtype), None, None, None, None, None


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    # Mixed statistics (Eq. 10) come here as running_mean and running_var without a gradient.
    if training or running_mean is None or running_var is None or not flows_through(input, weight, bias):
        return NotImplemented
    return _BatchNorm.apply(input, running_mean, running_var, weight, bias, eps)


AFFINE: dict[Any, Callable[..., Any]] = {
    torch.conv1d: _convolution(torch.conv1d, 1),
    torch.conv2d: _convolution(torch.conv2d, 2),
    torch.conv3d: _convolution(torch.conv3d, 3),
    F.linear: _linear,
    F.batch_norm: _batch_norm,
}
