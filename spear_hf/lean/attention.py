"""Attention without a mask, y = softmax(scale q k^T) v, in fp32 and fp64: keeps q, k and v, but not y.

PyTorch keeps y as well, because its backward needs, for each query, the sum over keys of P dP, which equals the sum
over channels of y dy. Here that sum is taken of P dP itself. Both compute P again from q and k, so that doing without y
needs no further matrix product.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.lean.flow import flows_through, is_checkpointed, part_size, scatter_tokens, tokens_with_gradient

_PART_ON_CPU = 2**18
"""How many probabilities are computed at once: 1 MiB in fp32, which stays in a core's cache between the products."""


class _Attention(torch.autograd.Function):
    """y = P v with P = softmax(scale q k^T), for q, k, v of (B, heads, N, C).

    Backward: dv = P^T dy
              dP = dy v^T
              dS = P (dP - sum over keys of P dP), elementwise
              dq = scale dS k
              dk = scale dS^T q
    A query whose row of dy is zero has a row of zeros in dS: its dq is zero, and it adds nothing to dk and dv. If few
    queries have a gradient, the products are computed for them alone.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return F.scaled_dot_product_attention(q, k, v, scale=scale)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = ctx.saved_tensors
        num_queries, tokens = q.shape[-2], tokens_with_gradient(dy)
        if tokens is not None:
            q, dy = q.index_select(-2, tokens), dy.index_select(-2, tokens)
        heads, shape = q.shape[1], (q.shape[-2], k.shape[-2])
        images = max(1, part_size(q, on_cpu=_PART_ON_CPU) // (heads * max(1, math.prod(shape))))
        gradients = _empty_gradients(q, k, v, side_by_side=images == 1 and q.shape == k.shape == v.shape)
        workspace = q.new_empty(2, min(images, len(q)) * heads, *shape)  # P and dS of one part after the other
        for part in zip(*(_parts(x, images) for x in (*gradients, q, k, v, dy)), strict=True):
            _write_gradients(*part, workspace=workspace, scale=ctx.scale)
        if tokens is not None:
            gradients[0] = scatter_tokens(gradients[0], tokens, num_queries)
        return *gradients, None


def _parts(x: Tensor, images: int) -> Iterable[Tensor]:
    """`images` images of x at a time, as (images x heads, N, C).

    One image is a view whatever x's layout. Several are a view of a contiguous tensor and a copy of another, so only
    contiguous gradients may be written several images at a time.
    """
    return x.unbind() if images == 1 else (part.flatten(0, 1) for part in x.split(images))


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, side_by_side: bool) -> list[Tensor]:
    """Tensors for dq, dk and dv.

    Args:
        side_by_side: lay them out as slices of one (B, N, 3, heads, C), the layout of the layer that returned q, k and
            v together. `_Unbind` then passes them on without a copy. Otherwise each is contiguous.
    """
    if not side_by_side:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    images, heads, count, width = q.shape
    return list(q.new_empty(images, count, 3, heads, width).permute(2, 0, 3, 1, 4).unbind())


def _write_gradients(
    dq: Tensor, dk: Tensor, dv: Tensor, q: Tensor, k: Tensor, v: Tensor, dy: Tensor, workspace: Tensor, scale: float
) -> None:
    """Write dq, dk and dv, all of (images x heads, N, C); `workspace` holds two (N, N) for each of these."""
    p, ds = workspace[:, : len(q)]
    torch.softmax(torch.baddbmm(p, q, k.mT, beta=0, alpha=scale, out=p), -1, out=p)
    torch.bmm(p.mT, dy, out=dv)
    torch.bmm(dy, v.mT, out=ds)
    torch.ops.aten._softmax_backward_data.out(ds, p, -1, p.dtype, grad_input=ds)
    torch.baddbmm(dq, ds, k, beta=0, alpha=scale, out=dq)  # beta=0: what dq holds, uninitialised memory, is not read
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
    tensors = (query, key, value)
    if attn_mask is not None or dropout_p or is_causal or not torch.is_grad_enabled() or is_checkpointed():
        return NotImplemented
    # In half precision PyTorch has flash kernels, which keep little beside y and are faster than the products here.
    if any(t.dtype not in (torch.float32, torch.float64) or t.dim() != 4 or not t.requires_grad for t in tensors):
        return NotImplemented
    if len({(*t.shape[:2], t.shape[3]) for t in tensors}) > 1 or torch.is_autocast_enabled(query.device.type):
        return NotImplemented
    return _Attention.apply(query, key, value, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)


class _Unbind(torch.autograd.Function):
    """q, k, v = x for x of (3, B, heads, N, C). Backward: dx = stack(dq, dk, dv), without a copy where they allow it.

    PyTorch's backward always copies the three gradients into a new tensor. Those of `_Attention` mostly lie side by
    side in one storage already; dx is then a view of it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        step = _common_step(gradients)
        if step is None:
            return torch.stack(gradients)
        first = gradients[0]
        return first.as_strided((len(gradients), *first.shape), (step, *first.stride()))


def _common_step(slices: tuple[Tensor, ...]) -> int | None:
    """The distance in storage from each slice to the next; None if storage, layout or distance is not common to all."""
    offsets = [int(each.storage_offset()) for each in slices]
    step = offsets[1] - offsets[0]
    layouts = {(each.untyped_storage().data_ptr(), each.stride(), each.shape) for each in slices}
    is_even = all(offset == offsets[0] + i * step for i, offset in enumerate(offsets))
    return step if len(layouts) == 1 and is_even and step > 0 else None


def _unbind(input: Any, dim: int = 0) -> Any:
    # (3, B, heads, N, C): what vision transformers make of the one layer that returns q, k and v together.
    if not flows_through(input) or dim != 0 or input.dim() != 5 or len(input) != 3:
        return NotImplemented
    return _Unbind.apply(input)


ATTENTION: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    torch.unbind: _unbind,
    Tensor.unbind: _unbind,
}
