"""Alpha-mixing of source and batch statistics (Eq. 10), without writing a buffer or replacing a module.

A BatchNorm in evaluation mode normalises by its running statistics. Its input is moved, just before it, so that the
result is what the mixed statistics would have given: x' = (x - mu_a) sqrt((var_s + eps) / (var_a + eps)) + mu_s. Every
subclass keeps what it does beyond normalising (timm's BatchNormAct2d its activation), and every buffer stays as it is.
Where `FusedMixing` is on, the common classes normalise by the mixed statistics at once, which is the same in one pass.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spear_hf.learning.stream_state import StatisticsCache, StreamStatistics
from spear_hf.steering.fusion import FusedMixing, is_fusable
from spear_hf.steering.moments import batch_statistics
from spear_hf.utils.distributed import BatchShard


class MixingSwitch(Protocol):
    """Says, at every call, how much of the batch to mix in, and what it is a slice of."""

    shard: BatchShard | None
    fusion: FusedMixing | None

    def mixing_alpha(self) -> float:
        """alpha of Eq. 10; 0 leaves the layer alone."""
        ...


def batch_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that carry running statistics: BatchNorm of any dimension and its subclasses, and frozen ones.

    Recognised by what they hold rather than by class, so that torchvision's and timm's FrozenBatchNorm2d count.
    """
    for name, module in model.named_modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        carries = isinstance(mean, Tensor) and isinstance(variance, Tensor) and hasattr(module, "eps")
        if carries and not isinstance(module, nn.modules.instancenorm._InstanceNorm):
            yield name, module


class AlphaMixing:
    """The forward pre-hook of one BatchNorm layer."""

    def __init__(
        self,
        switch: MixingSwitch,
        layer: str = "",
        kept: StatisticsCache | None = None,
        stream: StreamStatistics | None = None,
    ) -> None:
        self.switch = switch
        self.layer = layer
        self.kept = kept or StatisticsCache()
        self.stream = stream or StreamStatistics()
        self.used_source = 0  # batches that were too small to have statistics, and were answered with the source's

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        alpha = self.switch.mixing_alpha()
        if alpha == 0.0 or not args:
            return None
        x: Tensor = args[0]
        norm: Any = module  # a BatchNorm or what looks like one
        mixed = self.kept.of(self.layer) or self._mixed(x, norm, alpha)
        if mixed is None:
            self.used_source += 1
            return None
        mean, variance = mixed
        if self.switch.fusion is not None and is_fusable(module):
            self.switch.fusion.prepare(norm, mean, variance)
            return None
        scale = torch.sqrt((norm.running_var + norm.eps) / (variance + norm.eps))
        shape = [1, -1] + [1] * (x.dim() - 2)
        scale, shift = scale.view(shape), (norm.running_mean - mean * scale).view(shape)
        wide = x if x.dtype == torch.float64 else x.float()
        return (torch.addcmul(shift, wide, scale).to(x.dtype), *args[1:])

    def _mixed(self, x: Tensor, norm: Any, alpha: float) -> tuple[Tensor, Tensor] | None:
        """Of this batch; None where a channel holds one value."""
        statistics = batch_statistics(x, self.switch.shard, norm.running_mean)
        if statistics is None:
            return None
        shard = self.switch.shard
        statistics = self.stream.blended(self.layer, *statistics, len(x) if shard is None else shard.total)
        mixed = mixed_statistics(norm, *statistics, 1.0 if self.stream.whole else alpha)
        self.kept.note(self.layer, mixed)
        return mixed


@torch.no_grad()
def mixed_statistics(norm: Any, mean: Tensor, variance: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """(1 - alpha) source + alpha batch, mean and variance, each (C,) (Eq. 10).

    They are constants of the graph: letting gradients through the statistics costs memory and gains nothing.
    """
    source_mean, source_variance = norm.running_mean.to(mean.dtype), norm.running_var.to(mean.dtype)
    return torch.lerp(source_mean, mean, alpha), torch.lerp(source_variance, variance, alpha)
