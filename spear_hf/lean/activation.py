"""Activations, y = f(x): the backward needs f'(x) alone, which is kept in fewer bytes than x.

Of a piecewise linear activation it is 0 or 1 and takes one byte; of GELU and SiLU it lies in a short range: 20 bits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through, part_size

# --- piecewise linear: ReLU, ReLU6, hardtanh ------------------------------------------------------------------------


class _Gate(torch.autograd.Function):
    """y = clamp(x, low, high). Backward: dx = dy where low < y < high, else 0. Keeps that condition as booleans."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, low: float, high: float, inplace: bool) -> Tensor:
        y = function(x)
        if inplace:
            ctx.mark_dirty(x)
        # For low = 0 the condition is y > 0. y.bool(), y != 0, says the same of a y >= 0 and takes a fifth of the time.
        # Both forms are true of NaN, as PyTorch's own backward is.
        passes = y.bool() if low == 0 else y != low
        ctx.save_for_backward(passes if high == float("inf") else passes.logical_and_(y != high))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (passes,) = ctx.saved_tensors
        # A selection rather than the product dy * passes, which is NaN for an infinite dy that does not pass.
        return torch.ops.aten.threshold_backward(dy, passes.to(dy.dtype), 0), None, None, None, None


def _gate(x: Any, function: Any, low: float, high: float, inplace: bool) -> Any:
    # To change a view in place changes its base too; PyTorch's own operation records that in the graph of the base.
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


# --- smooth: GELU, SiLU ---------------------------------------------------------------------------------------------
#
# f'(x) is kept as the integer s = round((f'(x) - 0.5) 832000), which 20 bits hold: the derivatives of GELU and SiLU lie
# in [-0.13, 1.13], so |s| <= 0.63 * 832000 < 2^19. Read back, a derivative is off by at most 0.5 / 832000 = 6e-7: what
# fp32 itself is off by after a few sums. The upper 16 bits of s are an int16, the lower 4 share a byte with those of
# another value: s = 16 upper + lower.

_CENTRE, _SCALE = 0.5, 832000.0

# fp32 numbers between 2^23 and 2^24 are the integers. A sum of that size is therefore rounded to an integer by the
# addition itself, and its lowest bits are those of the integer. From 1.5 * 2^23, the middle of the range, it may be
# moved by +-2^22 without leaving the range, and as 1.5 * 2^23 is a multiple of 2^20, the lowest 20 bits of
# 1.5 * 2^23 + s are s in two's complement. One addition thus replaces subtracting, rounding and converting.
_ROUND = 1.5 * 2**23

# 4 MiB of fp32. In smaller parts the calls cost more than the cache saves. Even, because a byte holds two values.
_PART_ON_CPU = 2**20


class _Smooth(torch.autograd.Function):
    """y = f(x). Backward: dx = f'(x) dy, with f'(x) = 0.5 + (16 upper + lower) / 832000.

    In each part of n values the byte i holds the lower bits of value i (low nibble) and of value i + ceil(n / 2) (high
    nibble), so that both nibbles are read and written as contiguous halves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, derivative: Any) -> Tensor:
        upper = torch.empty_like(x, dtype=torch.int16)
        lower = torch.empty((x.numel() + 1) // 2, dtype=torch.uint8, device=x.device)
        # PyTorch's backward of f computes f'(x) dy. With _SCALE for dy it gives the scaled derivative in one pass.
        scale = x.new_full((min(x.numel(), _values_at_once(x)),), _SCALE)
        workspace, byte_workspace = torch.empty_like(scale), torch.empty_like(scale, dtype=torch.uint8)
        for part, upper_part, lower_part in zip(_parts(x), _parts(upper), _byte_parts(lower), strict=True):
            scaled = derivative(scale[: len(part)], part, grad_input=workspace[: len(part)])
            bits = scaled.add_(_ROUND - _CENTRE * _SCALE).view(torch.int32)
            # Conversions to uint8 and int16 keep the lowest 8 and 16 bits, and so does arithmetic in uint8: 16 times
            # the second half of the bytes leaves their lowest 4 bits in the high nibble.
            first, second = byte_workspace[: len(part)].copy_(bits).tensor_split([len(lower_part)])
            torch.bitwise_and(first, 15, out=lower_part)
            lower_part[: len(second)].add_(second, alpha=16)
            upper_part.copy_(bits.bitwise_right_shift_(4))
        ctx.save_for_backward(upper, lower)
        return function(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        upper, lower = ctx.saved_tensors
        dy = dy.contiguous()
        dx = torch.empty_like(dy)
        centre = dy.new_full((), _CENTRE)
        byte_workspace = torch.empty_like(lower[: _values_at_once(dy) // 2])
        workspace = torch.empty_like(byte_workspace, dtype=dy.dtype)
        parts = zip(_parts(upper), _byte_parts(lower), _parts(dy), _parts(dx), strict=True)
        for upper_part, lower_part, gradient, out in parts:
            # out = 0.5 + 16 upper / scale, + lower / scale (low nibbles, then high ones), then times dy; all in out.
            torch.add(centre, out.copy_(upper_part), alpha=16 / _SCALE, out=out)
            first, second = out.tensor_split([len(lower_part)])
            nibbles, values = byte_workspace[: len(lower_part)], workspace[: len(lower_part)]
            first.add_(values.copy_(torch.bitwise_and(lower_part, 15, out=nibbles)), alpha=1 / _SCALE)
            values.copy_(torch.bitwise_right_shift(lower_part, 4, out=nibbles))
            second.add_(values[: len(second)], alpha=1 / _SCALE)
            out.mul_(gradient)
        return dx, None, None


def _values_at_once(x: Tensor) -> int:
    return part_size(x, on_cpu=_PART_ON_CPU)


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(-1).split(_values_at_once(x))


def _byte_parts(x: Tensor) -> tuple[Tensor, ...]:
    """The parts of a tensor whose bytes hold two values each."""
    return x.split(_values_at_once(x) // 2)


def _smooth(x: Any, function: Any, derivative: Any) -> Any:
    # In fp32 alone: half precision takes 2 bytes for x itself, and fp64 gradients must stay exact.
    if not flows_through(x) or x.dtype != torch.float32 or not x.is_contiguous():
        return NotImplemented
    return _Smooth.apply(x, function, derivative)


def _gelu(input: Any, *, approximate: str = "none") -> Any:
    def function(x: Tensor) -> Tensor:
        return F.gelu(x, approximate=approximate)

    def derivative(dy: Tensor, x: Tensor, grad_input: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward.grad_input(dy, x, approximate=approximate, grad_input=grad_input)

    return _smooth(input, function, derivative)


def _silu(input: Any, inplace: bool = False) -> Any:
    return NotImplemented if inplace else _smooth(input, F.silu, torch.ops.aten.silu_backward.grad_input)


ACTIVATIONS: dict[Any, Callable[..., Any]] = {
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    F.relu_: _relu_,
    torch.relu_: _relu_,
    Tensor.relu_: _relu_,
    F.hardtanh: _hardtanh,
    F.relu6: _relu6,
    F.gelu: _gelu,
    F.silu: _silu,
}
