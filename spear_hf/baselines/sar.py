"""SAR: sharpness-aware entropy minimisation over reliable images, with recovery from collapse (Niu et al. 2023)."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.component import Component
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions, before_last_stage
from spear_hf.baselines.losses import Batch, entropy
from spear_hf.baselines.optimizer_config import scaled_optimizer_config
from spear_hf.learning.optimize import are_finite, gradients, step_along
from spear_hf.learning.record import NON_FINITE_GRADIENT, NON_FINITE_LOSS, UNRELIABLE

RECOVERED = "answers had become too sure, the source was restored"


@dataclass
class ReliableEntropy(Component):
    """L = mean_R H_i over R = {H_i < E0}; at the perturbed parameters, over those of R that are below E0 there too.

    Args:
        threshold: E0 / log K.

    >>> from spear_hf.baselines.sar import ReliableEntropy
    >>> ReliableEntropy().settings()
    {'kind': 'ReliableEntropy', 'threshold': 0.4}
    """

    threshold: float = 0.4
    mean: float | None = field(init=False, default=None)
    """A moving average (0.9) of the loss at the perturbed parameters."""

    def __call__(self, batch: Batch) -> Tensor | None:
        """The loss, in nats; None if no image is reliable."""
        return _mean_below(entropy(batch.logits), self._limit(batch.logits))

    def at_peak(self, logits: Tensor, batch: Batch) -> Tensor | None:
        """The loss of the same batch by its logits at the perturbed parameters; the average is updated by it."""
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

    A step from w takes the gradient at the perturbed parameters w + e, with e = rho g / ||g|| over all parameters.

    Published with SGD. With batch norms or group norms the rate is 2.5e-4 from 32 images on and proportionally less
    below; for a transformer it is 1e-3 for 64 images and proportional to the batch; one image gets twice its share. The
    authors' code writes the old average back after a recovery and then recovers at every batch; it also steps by
    momentum alone if no image is reliable. Neither is done here. It names the layers that it skips; see
    `skip="published"`.

    Args:
        model: any image classifier; gamma and beta of its last stage are skipped, unless `skip` says otherwise.
        threshold: see ReliableEntropy.
        rho: length of e.
        floor: restore the source when the average loss falls below this; 0 never. The published value is for any number
            of classes. Few classes have small entropies, so easy streams can reach it without a collapse.
        keep_momentum: whether SGD's momentum outlives a recovery. In the authors' code it does, because only the state
            of the outer optimizer is restored, and so it does in `published("sar", ...)`; by default it does not.
        options: see LearnerOptions. A learning rate that is given scales too, unless scale_lr=False.

    >>> import timm, torch
    >>> from spear_hf.baselines import Sar
    >>> Sar(timm.create_model("test_resnet")).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: float = 0.4,
        rho: float = 0.05,
        floor: float = 0.2,
        keep_momentum: bool = False,
        **options: Unpack[LearnerOptions],
    ) -> None:
        self.reliable, self.rho, self.floor = ReliableEntropy(threshold), rho, floor
        self.keep_momentum = keep_momentum
        super().__init__(model, self.reliable, scaled_optimizer_config(model), **before_last_stage(options))

    def _descend(self, loss: Tensor, batch: Batch) -> str | None:
        skipped = self._descend_sharply(loss, batch)
        if self.reliable.mean is not None and self.reliable.mean < self.floor:
            self.learned.put(self.learned.start)
            if not self.keep_momentum:
                self.optimizer.state.clear()
            self.reliable.reset()
            return RECOVERED
        return skipped

    def _descend_sharply(self, loss: Tensor, batch: Batch) -> str | None:
        parameters = self.learned.parameters
        if not bool(torch.isfinite(loss.detach())):
            return NON_FINITE_LOSS
        found = gradients(loss, parameters)
        if not are_finite(found):
            return NON_FINITE_GRADIENT
        here = self.learned.snapshot()
        ascend(parameters, found, self.rho)
        peak = self.reliable.at_peak(batch.forward(batch.x), batch)
        found = [] if peak is None else gradients(peak, parameters)
        self.learned.put(here)
        if peak is None:
            return UNRELIABLE
        if not bool(torch.isfinite(peak.detach())):
            return NON_FINITE_LOSS
        return None if step_along(found, self.optimizer) else NON_FINITE_GRADIENT

    def settings(self) -> dict[str, Any]:
        """With rho, the floor, and what a recovery keeps."""
        return super().settings() | {"rho": self.rho, "floor": self.floor, "keep_momentum": self.keep_momentum}


@torch.no_grad()
def ascend(parameters: list[nn.Parameter], found: list[Tensor | None], rho: float) -> None:
    """Move w to w + rho g / ||g||, with the norm of all gradients together.

    >>> import torch
    >>> from spear_hf.baselines.sar import ascend
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> ascend([w], [torch.tensor([3.0, 4.0])], rho=0.5)
    >>> w.detach()
    tensor([0.3000, 0.4000])
    """
    norm = torch.stack([g.norm() for g in found if g is not None]).norm()
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is not None:
            parameter.add_(gradient * (rho / (norm + 1e-12)))
