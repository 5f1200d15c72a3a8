"""DeYO: entropy is not enough; what vanishes with the object's shape was read from the object (Lee et al. 2024)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.dice import Dice
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.objective import Batch, entropy
from spear_hf.baselines.options import Options, before_last_stage
from spear_hf.baselines.part import Part
from spear_hf.baselines.patches import ObjectDestruction
from spear_hf.baselines.rule import scaled_optimizer_config
from spear_hf.learning.objective import log_probabilities


@dataclass
class ObjectEntropy(Part):
    """L = mean_S H_i (exp(E0 - H_i) + exp(PLPD_i)), the weight a constant, over S = {H_i < tau, PLPD_i > margin}.

    PLPD_i = p_i[y] - p'_i[y], with y = argmax p_i and p' the prediction for the destroyed image; those are forwarded
    together, without what is not below tau.

    Args:
        threshold: tau / log K.
        margin: of the PLPD.
        reference: E0 / log K.
        destruction: what is done to the images.
    """

    threshold: float = 0.5
    margin: float = 0.2
    reference: float = 0.4
    destruction: ObjectDestruction = field(default_factory=ObjectDestruction)

    def __call__(self, batch: Batch) -> Tensor | None:
        """In nats; None where no image is left."""
        classes = math.log(batch.logits.shape[1])
        h = entropy(batch.logits)
        low = h.detach() < self.threshold * classes
        if not bool(low.any()):
            return None
        difference = self.plpd(batch.x[low], batch.logits[low].detach(), batch)
        chosen = difference > self.margin
        if not bool(chosen.any()):
            return None
        h, difference = h[low][chosen], difference[chosen]
        return (h * (torch.exp(self.reference * classes - h.detach()) + torch.exp(difference))).mean()

    @torch.no_grad()
    def plpd(self, x: Tensor, logits: Tensor, batch: Batch) -> Tensor:
        """Pseudo-label probability difference, (B,), in [-1, 1]: how much of the answer went with the object."""
        p = log_probabilities(logits).exp()
        destroyed = log_probabilities(batch.forward(self.destruction(x))).exp()
        answer = p.argmax(1, keepdim=True)
        return (p - destroyed).gather(1, answer).squeeze(1)


class Deyo(Learner):
    """Weighted entropy of the images whose answer depends on the object, on the norms before the last stage.

    Published as SAR was, with SGD in proportion to the batch. The authors' code cannot reset; this does. The
    permutations come from a generator of its own.

    Args:
        model: any image classifier; gamma and beta of its last stage are skipped, unless `skip` says otherwise.
        threshold, margin, reference: see ObjectEntropy. The margin was 0.3 for ImageNet's ResNet-50 and 0.2 elsewhere;
            0.5 with five times the learning rate for spurious backgrounds.
        destruction: "patch", "pixel" or "occlusion"; see Destruction.
        seed: of the permutations.
        options: see Options. A learning rate that is given scales too, unless scale_lr=False.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: float = 0.5,
        margin: float = 0.2,
        reference: float = 0.4,
        destruction: str = "patch",
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        destroy = ObjectDestruction(destruction, dice=Dice(seed))
        objective = ObjectEntropy(threshold, margin, reference, destroy)
        super().__init__(model, objective, scaled_optimizer_config(model), **before_last_stage(options))
