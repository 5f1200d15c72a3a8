"""Batch norm in evaluation mode, y = scale * x + shift with constants: dx = scale * dy, so the input is not kept."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through


class _BatchNorm(torch.autograd.Function):
    """y = weight * (x - mean) / sqrt(variance + eps) + bias; keeps one number for each channel."""

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
    if training or running_mean is None or running_var is None or not flows_through(input, weight, bias):
        return NotImplemented
    return _BatchNorm.apply(input, running_mean, running_var, weight, bias, eps)


NORMALIZATIONS = {F.batch_norm: _batch_norm}
