"""Attention without a mask: the gradients of q, k and v need the probabilities, which q and k give again.

PyTorch keeps the output of the attention, too. Here it is not kept, and the backward pass does not need more products
of matrices for that: it computes the probabilities from q and k either way.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import is_checkpointed
from spear_hf.lean.parts import at_once


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
        images = max(1, at_once(q) * len(q) // (q.numel() // q.shape[-1] * k.shape[-2]))
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        parts = zip(*(x.split(images) for x in (q, k, v, dy, *gradients)), strict=True)
        for *inputs, dq, dk, dv in parts:
            _write_gradients((dq, dk, dv), *inputs, scale=ctx.scale)
        return *gradients, None


def _write_gradients(
    out: tuple[Tensor, Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, dy: Tensor, scale: float
) -> None:
    q = q * scale
    p = torch.softmax(q @ k.mT, -1)
    ds = torch.ops.aten._softmax_backward_data(dy @ v.mT, p, -1, p.dtype)
    torch.matmul(ds, k * scale, out=out[0])
    torch.matmul(ds.mT, q, out=out[1])
    torch.matmul(p.mT, dy, out=out[2])


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
