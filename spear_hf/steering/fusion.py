"""Batch norms that take the alpha-mixed statistics in place of their own: one pass over the input rather than two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from spear_hf.lean.flow import is_checkpointed


class FusedMixing(TorchFunctionMode):
    """Inside, the next `F.batch_norm` of a prepared layer is called with the statistics that were prepared for it."""

    def __init__(self) -> None:
        super().__init__()
        self._prepared: dict[int, tuple[Tensor, Tensor]] = {}  # by the identity of the layer's running mean

    def prepare(self, norm: Any, mean: Tensor, variance: Tensor) -> None:
        """Have `norm` normalise by these, once; for a layer that `is_fusable`."""
        dtype = norm.running_mean.dtype
        self._prepared[id(norm.running_mean)] = mean.to(dtype), variance.to(dtype)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and len(args) > 1 and (mixed := self._prepared.pop(id(args[1]), None)) is not None:
            return func(args[0], *mixed, *args[3:], **kwargs)
        return func(*args, **kwargs)


def is_fusable(norm: nn.Module) -> bool:
    """Whether this layer's forward is known to hand its running mean to `F.batch_norm`, once and by position."""
    known = type(norm).forward is nn.modules.batchnorm._BatchNorm.forward or type(norm).__name__ == "BatchNormAct2d"
    return known and not norm.training and not is_checkpointed()


class Fusing(Protocol):
    """What says how much to mix, and holds the mode while it is on."""

    fusion: FusedMixing | None

    def mixing_alpha(self) -> float: ...


def call_fused(switch: Fusing, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """call(*args, **kwargs) with fused mixing; without it where nothing is mixed, and where a compiler fuses anyway."""
    if switch.mixing_alpha() == 0.0 or torch.compiler.is_compiling():
        return call(*args, **kwargs)
    before, switch.fusion = switch.fusion, FusedMixing()
    try:
        with switch.fusion:
            return call(*args, **kwargs)
    finally:
        switch.fusion = before
