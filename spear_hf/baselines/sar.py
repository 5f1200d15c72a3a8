"""SAR: entropy of reliable images, minimised where it is flat, with a way back from collapse (Niu et al. 2023)."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.descent import gradients, step_along, why_not
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.objective import Batch, entropy
from spear_hf.baselines.options import Options, before_last_stage
from spear_hf.baselines.outcome import UNRELIABLE
from spear_hf.baselines.part import Part
from spear_hf.baselines.rule import scaled_optimizer_config

RECOVERED = "answers had become too sure, the source was restored"


@dataclass
class ReliableEntropy(Part):
    """L = mean_R H_i over R = {H_i < E0}; at the peak near by, over those of R that are below E0 there too.

    Args:
        threshold: E0 / log K.
    """

    threshold: float = 0.4
    mean: float | None = field(init=False, default=None)
    """A moving average (0.9) of the loss at the peak."""

    def __call__(self, batch: Batch) -> Tensor | None:
        """In nats; None where no image is reliable."""
        return _mean_below(entropy(batch.logits), self._limit(batch.logits))

    def at_peak(self, logits: Tensor, batch: Batch) -> Tensor | None:
        """The loss of the same batch, from its logits at the peak; remembered."""
        limit = self._limit(logits)
        loss = _mean_below(entropy(logits)[entropy(batch.logits.detach()) < limit], limit)
        if loss is not None and bool(torch.isfinite(loss)):
            value = float(loss.detach())
            self.mean = value if self.mean is None else 0.9 * self.mean + 0.1 * value
        return loss

    def _limit(self, logits: Tensor) -> float:
        return self.threshold * math.log(logits.shape[1])


def _mean_below(h: Tensor, limit: float) -> Tensor | None:
    low = h[h.detach() < limit]
    return low.mean() if len(low) else None


class Sar(Learner):
    """Sharpness-aware steps down the entropy of reliable images, on the norms before the last stage.

    e = rho g / ||g||, over all learned parameters together; the step is taken with the gradient at w + e.

    Published with SGD, at 2.5e-4 from 32 images on and less in proportion below, with batch norms, and at 1e-3 for 64
    images in proportion to the batch without. The authors' code writes the old average back after a recovery and then
    recovers at every batch; it also steps by momentum alone where no image is reliable. Neither is done here. It names
    the layers that it skips; see `skip="published"`.

    Args:
        model: any image classifier; gamma and beta of its last stage are skipped, unless `skip` says otherwise.
        threshold: see ReliableEntropy.
        rho: length of the ascent.
        floor: below which average the source is restored; 0 never. Published for any number of classes, though the
            entropies of few classes are small: on easy streams it can be met without a collapse.
        options: see Options. A learning rate that is given scales too, unless scale_lr=False.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: float = 0.4,
        rho: float = 0.05,
        floor: float = 0.2,
        **options: Unpack[Options],
    ) -> None:
        self.reliable, self.rho, self.floor = ReliableEntropy(threshold), rho, floor
        super().__init__(model, self.reliable, scaled_optimizer_config(model), **before_last_stage(options))

    def _descend(self, loss: Tensor, batch: Batch) -> str | None:
        skipped = self._descend_sharply(loss, batch)
        if self.reliable.mean is not None and self.reliable.mean < self.floor:
            self._back_to_source()
            self.reliable.reset()
            return RECOVERED
        return skipped

    def _descend_sharply(self, loss: Tensor, batch: Batch) -> str | None:
        parameters = self.learned.parameters
        found = gradients(loss, parameters)
        if (skipped := why_not(loss, found)) is not None:
            return skipped
        here = self.learned.snapshot()
        ascend(parameters, found, self.rho)
        peak = self.reliable.at_peak(batch.forward(batch.x), batch)
        found = [] if peak is None else gradients(peak, parameters)
        self.learned.put(here)
        if peak is None:
            return UNRELIABLE
        if (skipped := why_not(peak, found)) is None:
            step_along(self.optimizer, found)
        return skipped

    def settings(self) -> dict[str, Any]:
        """With rho and the floor."""
        return super().settings() | {"rho": self.rho, "floor": self.floor}


@torch.no_grad()
def ascend(parameters: list[nn.Parameter], found: list[Tensor | None], rho: float) -> None:
    """w <- w + rho g / ||g||, the norm being that of all gradients together."""
    norm = torch.stack([g.norm() for g in found if g is not None]).norm()
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is not None:
            parameter.add_(gradient * (rho / (norm + 1e-12)))
