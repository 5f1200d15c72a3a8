"""Linear layers with frozen weights: dx = dy W, of those tokens alone that have a gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through
from spear_hf.lean.tokens import scattered, tokens_with_gradient


class _Linear(torch.autograd.Function):
    """y = x W^T + b for x of (..., N, C); keeps the weight, which is there anyway."""

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
        return scattered(dy.index_select(-2, tokens) @ weight, tokens, dy.shape[-2]), None, None


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """On a CPU, where tokens are looked at; a subclass of Tensor, as quantised weights are, has a linear of its own."""
    if not flows_through(input, weight, bias) or input.dim() < 3 or input.device.type != "cpu":
        return NotImplemented
    if type(weight) not in (Tensor, nn.Parameter) or weight.dtype != input.dtype or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    return _Linear.apply(input, weight, bias)


LINEARS: dict[Any, Callable[..., Any]] = {F.linear: _linear}
