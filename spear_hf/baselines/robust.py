"""RobustStatistics: batch norms that normalise by a slow average of the stream's statistics, one for each model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.baselines.part import Part
from spear_hf.steering.mixing import batch_norms


@dataclass
class RobustStatistics(Part):
    """(mu, s2) of every batch norm, of the teacher and of the student, beginning with the source's.

    While learning, (mu, s2) <- (1 - a) (mu, s2) + a (mean, biased variance of the batch), by which the batch is then
    normalised, with gradients through the batch's part. Otherwise they stay. No layer is replaced and no buffer
    changed, so that a layer that does more than normalise (timm's BatchNormAct2d) goes on doing it.

    Args:
        momentum: a.
    """

    momentum: float = 0.05
    teacher: list[Tensor] | None = field(init=False, default=None)
    student: list[Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.norms: list[Any] = []
        self.who: Literal["teacher", "student"] = "teacher"
        self.learning = False

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """Put hooks on the batch norms of `model`."""
        self.norms = [m for _, m in batch_norms(model) if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        layers = [_Layer(self, i) for i in range(len(self.norms))]
        before = [n.register_forward_pre_hook(h.before) for n, h in zip(self.norms, layers, strict=True)]
        after = [
            n.register_forward_hook(h.after, prepend=True, always_call=True)
            for n, h in zip(self.norms, layers, strict=True)
        ]
        return before + after

    @contextmanager
    def acting(self, who: Literal["teacher", "student"], *, learning: bool = False) -> Iterator[None]:
        """Inside, forwards are normalised by this model's statistics, and move them where it is learning."""
        before = self.who, self.learning
        self.who, self.learning = who, learning
        try:
            yield
        finally:
            self.who, self.learning = before

    def moments(self) -> list[Tensor]:
        """mu_0, s2_0, mu_1, s2_1, ... of the acting model."""
        kept: list[Tensor] | None = getattr(self, self.who)
        if kept is None:
            kept = [b.clone() for n in self.norms for b in (n.running_mean, n.running_var)]
            setattr(self, self.who, kept)
        return kept


class _Layer:
    """The hooks of one batch norm."""

    def __init__(self, robust: RobustStatistics, index: int) -> None:
        self.robust, self.index = robust, index
        self.source: tuple[Any, Any] | None = None

    def before(self, module: Any, args: tuple[Any, ...]) -> Any:
        x: Tensor = args[0]
        moments, i = self.robust.moments(), 2 * self.index
        if not self.robust.learning or x.numel() <= x.shape[1]:
            self.source = module.running_mean, module.running_var
            module.running_mean, module.running_var = moments[i], moments[i + 1]
            return None
        variance, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
        mean = torch.lerp(moments[i], mean, self.robust.momentum)
        variance = torch.lerp(moments[i + 1], variance, self.robust.momentum)
        moments[i], moments[i + 1] = mean.detach(), variance.detach()
        scale = torch.sqrt((module.running_var + module.eps) / (variance + module.eps))
        shape = [1, -1] + [1] * (x.dim() - 2)
        return ((x - mean.view(shape)) * scale.view(shape) + module.running_mean.view(shape), *args[1:])

    def after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self.source is not None:
            module.running_mean, module.running_var = self.source
            self.source = None
