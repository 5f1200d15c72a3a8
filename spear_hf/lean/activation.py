"""Piecewise linear activations: the derivative is 0 or 1, so one byte for each value is kept in place of four."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through


class _Gate(torch.autograd.Function):
    """y = function(x), with derivative 1 where y lies strictly between `low` and `high`, else 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, low: float, high: float, inplace: bool) -> Tensor:
        y = function(x)
        if inplace:
            ctx.mark_dirty(x)
        passed = y.bool() if low == 0 else y != low  # y.bool() is y > 0 at a fifth of the time
        ctx.save_for_backward(passed if high == float("inf") else passed.logical_and_(y != high))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (passed,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(dy, passed.to(dy.dtype), 0), None, None, None, None


def _gate(x: Any, function: Any, low: float, high: float, inplace: bool) -> Any:
    if not flows_through(x) or (inplace and x._is_view()):
        return NotImplemented
    return _Gate.apply(x, function, low, high, inplace)


def _relu(input: Any, inplace: bool = False) -> Any:
    return _gate(input, torch.relu_ if inplace else torch.relu, 0.0, float("inf"), inplace)


def _relu_(input: Any) -> Any:
    return _relu(input, inplace=True)


def _hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    def clamp(x: Tensor) -> Tensor:
        return (torch.clamp_ if inplace else torch.clamp)(x, min_val, max_val)

    return _gate(input, clamp, min_val, max_val, inplace)


def _relu6(input: Any, inplace: bool = False) -> Any:
    return _hardtanh(input, 0.0, 6.0, inplace)


ACTIVATIONS: dict[Any, Callable[..., Any]] = {
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    F.relu_: _relu_,
    torch.relu_: _relu_,
    Tensor.relu_: _relu_,
    F.hardtanh: _hardtanh,
    F.relu6: _relu6,
}
