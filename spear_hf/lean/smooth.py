"""Smooth activations of one argument: their derivative has a short range, so 20 bits of it are kept in place of x.

On a grid of 2^20 values over 1.26 a derivative is off by at most 6e-7, which is what fp32 itself is off by after a few
sums. The upper 16 bits and the lower 4, two to a byte, are kept apart.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through
from spear_hf.lean.parts import at_once

_CENTRE, _SCALE = 0.5, 832000.0  # 20 bits cover [-0.13, 1.13], where the derivatives of GELU and SiLU lie
_AT_ONCE = 2**20  # an even count, 4 MiB of fp32; of smaller parts the calls cost more than the cache saves
_ROUND = 1.5 * 2**23  # what is added to it in fp32 is rounded to an integer, which the low bits of the sum then hold


class _Smooth(torch.autograd.Function):
    """y = function(x); keeps round((y' - centre) * scale)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, derivative: Any) -> Tensor:
        upper = torch.empty_like(x, dtype=torch.int16)
        lower = torch.empty((x.numel() + 1) // 2, dtype=torch.uint8, device=x.device)
        scale = x.new_full((min(x.numel(), _at_once(x)),), _SCALE)
        room, nibbles = torch.empty_like(scale), torch.empty_like(scale, dtype=torch.uint8)
        for part, high, low in zip(_parts(x), _parts(upper), _halves(lower), strict=True):
            scaled = derivative(scale[: len(part)], part, grad_input=room[: len(part)])
            bits = scaled.add_(_ROUND - _CENTRE * _SCALE).view(torch.int32)
            first, second = nibbles[: len(part)].copy_(bits).tensor_split([len(low)])
            torch.bitwise_and(first, 15, out=low)
            low[: len(second)].add_(second, alpha=16)  # of which a byte keeps 4 bits
            high.copy_(bits.bitwise_right_shift_(4))
        ctx.save_for_backward(upper, lower)
        return function(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        upper, lower = ctx.saved_tensors
        dy = dy.contiguous()
        dx = torch.empty_like(dy)
        centre = dy.new_full((), _CENTRE)
        nibbles = torch.empty_like(lower[: _at_once(dy) // 2])
        room = torch.empty_like(nibbles, dtype=dy.dtype)
        kept = zip(_parts(upper), _halves(lower), strict=True)
        for (high, low), gradient, out in zip(kept, _parts(dy), _parts(dx), strict=True):
            torch.add(centre, out.copy_(high), alpha=16 / _SCALE, out=out)
            first, second = out.tensor_split([len(low)])
            four, bits = room[: len(low)], nibbles[: len(low)]
            first.add_(four.copy_(torch.bitwise_and(low, 15, out=bits)), alpha=1 / _SCALE)
            four.copy_(torch.bitwise_right_shift(low, 4, out=bits))
            second.add_(four[: len(second)], alpha=1 / _SCALE)
            out.mul_(gradient)
        return dx, None, None


def _at_once(x: Tensor) -> int:
    return at_once(x, on_cpu=_AT_ONCE)


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(-1).split(_at_once(x))


def _halves(x: Tensor) -> tuple[Tensor, ...]:
    """Of bytes that hold two values each."""
    return x.split(_at_once(x) // 2)


def _smooth(x: Any, function: Any, derivative: Any) -> Any:
    """In fp32 alone: halves keep no more than this by themselves, and doubles are asked for to the last digit."""
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


SMOOTH: dict[Any, Callable[..., Any]] = {F.gelu: _gelu, F.silu: _silu}
