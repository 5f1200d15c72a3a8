"""Unbinding q, k and v: gradients that attention leaves side by side in one tensor are not copied."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spear_hf.lean.flow import flows_through


class _Unbind(torch.autograd.Function):
    """The slices of x along its first axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        step = _step(gradients)
        if step is None:
            return torch.stack(gradients)
        first = gradients[0]
        return first.as_strided((len(gradients), *first.shape), (step, *first.stride()))


def _step(slices: tuple[Tensor, ...]) -> int | None:
    """How far apart in one storage slices of one layout lie; None where they do not."""
    offsets = [int(each.storage_offset()) for each in slices]
    step = offsets[1] - offsets[0]
    places = {(each.untyped_storage().data_ptr(), each.stride(), each.shape) for each in slices}
    evenly = all(offset == offsets[0] + i * step for i, offset in enumerate(offsets))
    return step if len(places) == 1 and evenly and step > 0 else None


def _unbind(input: Any, dim: int = 0) -> Any:
    """Of (3, B, heads, N, C), which is what a layer's output for q, k and v is made to be."""
    if not flows_through(input) or dim != 0 or input.dim() != 5 or len(input) != 3:
        return NotImplemented
    return _Unbind.apply(input)


UNBINDS: dict[Any, Callable[..., Any]] = {torch.unbind: _unbind, Tensor.unbind: _unbind}
