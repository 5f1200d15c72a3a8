"""Attention without a mask: the gradients of q, k and v need the probabilities, which q and k give again.

PyTorch keeps the output of the attention, too. Here it is not kept, and the backward pass does not need more products
of matrices for that: it computes the probabilities from q and k either way.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import is_checkpointed
from spear_hf.lean.parts import at_once
from spear_hf.lean.tokens import scattered, tokens_with_gradient


class _Attention(torch.autograd.Function):
    """softmax(q k^T scale) v for q, k, v of (..., N, C); keeps these three."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return F.scaled_dot_product_attention(q, k, v, scale=scale)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = ctx.saved_tensors
        count, tokens = q.shape[-2], tokens_with_gradient(dy)
        if tokens is not None:
            q, dy = q.index_select(-2, tokens), dy.index_select(-2, tokens)
        heads, shape = q.shape[1], (q.shape[-2], k.shape[-2])
        images = max(1, at_once(q, on_cpu=2**18) // (heads * max(1, math.prod(shape))))
        gradients = _room_for_gradients(q, k, v, side_by_side=images == 1 and q.shape == k.shape == v.shape)
        rooms = q.new_empty(2, min(images, len(q)) * heads, *shape)
        for part in zip(*(_parts(x, images) for x in (*gradients, q, k, v, dy)), strict=True):
            _write_gradients(*part, rooms=rooms, scale=ctx.scale)
        if tokens is not None:
            gradients[0] = scattered(gradients[0], tokens, count)
        return *gradients, None


def _parts(x: Tensor, images: int) -> Iterable[Tensor]:
    """(images x heads, N, C) at a time."""
    return x.unbind() if images == 1 else (part.flatten(0, 1) for part in x.split(images))


def _room_for_gradients(q: Tensor, k: Tensor, v: Tensor, side_by_side: bool) -> list[Tensor]:
    """Three times (B, heads, N, C): contiguous each, or together the (B, N, 3, heads, C) of one layer's output."""
    if not side_by_side:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    images, heads, count, width = q.shape
    return list(q.new_empty(images, count, 3, heads, width).permute(2, 0, 3, 1, 4).unbind())


def _write_gradients(
    dq: Tensor, dk: Tensor, dv: Tensor, q: Tensor, k: Tensor, v: Tensor, dy: Tensor, rooms: Tensor, scale: float
) -> None:
    """Of (images x heads, N, C) each, in two rooms for as many (N, N)."""
    p, ds = rooms[:, : len(q)]
    torch.softmax(torch.baddbmm(p, q, k.mT, beta=0, alpha=scale, out=p), -1, out=p)
    torch.bmm(p.mT, dy, out=dv)
    torch.bmm(dy, v.mT, out=ds)
    torch.ops.aten._softmax_backward_data.out(ds, p, -1, p.dtype, grad_input=ds)
    torch.baddbmm(dq, ds, k, beta=0, alpha=scale, out=dq)
    torch.baddbmm(dk, ds.mT, q, beta=0, alpha=scale, out=dk)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """In fp32 and fp64: PyTorch's kernels for halves keep little beyond the output, and are the faster ones."""
    tensors = (query, key, value)
    if attn_mask is not None or dropout_p or is_causal or not torch.is_grad_enabled() or is_checkpointed():
        return NotImplemented
    if any(t.dtype not in (torch.float32, torch.float64) or t.dim() != 4 or not t.requires_grad for t in tensors):
        return NotImplemented
    if len({(*t.shape[:2], t.shape[3]) for t in tensors}) > 1 or torch.is_autocast_enabled(query.device.type):
        return NotImplemented
    return _Attention.apply(query, key, value, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)


ATTENTIONS: dict[Any, Callable[..., Any]] = {F.scaled_dot_product_attention: _attention}
