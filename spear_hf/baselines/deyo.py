"""DeYO: entropy of the images whose prediction depends on the shape of the object (Lee et al. 2024)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.augmentation import ObjectDestruction
from spear_hf.baselines.component import Component, Dice
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions, before_last_stage
from spear_hf.baselines.losses import Batch, entropy
from spear_hf.baselines.optimizer_config import scaled_optimizer_config
from spear_hf.learning.objective import log_probabilities


@dataclass
class ObjectEntropy(Component):
    """L = mean_S H_i (exp(E0 - H_i) + exp(PLPD_i)), the weight a constant, over S = {H_i < tau, PLPD_i > margin}.

    PLPD_i = p_i[y] - p'_i[y], with y = argmax p_i and p' the prediction for the destroyed image. Only images with H_i
    below tau are destroyed and forwarded again.

    Args:
        threshold: tau / log K.
        margin: of the PLPD.
        reference: E0 / log K.
        destruction: how the images are destroyed.

    >>> from spear_hf.baselines.deyo import ObjectEntropy
    >>> ObjectEntropy(margin=0.3).settings()["margin"]
    0.3
    """

    threshold: float = 0.5
    margin: float = 0.2
    reference: float = 0.4
    destruction: ObjectDestruction = field(default_factory=ObjectDestruction)

    def __call__(self, batch: Batch) -> Tensor | None:
        """The loss, in nats; None if S is empty."""
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
        """Pseudo-label probability difference, (B,), in [-1, 1]: what the answer loses without the object."""
        p = log_probabilities(logits).exp()
        destroyed = log_probabilities(batch.forward(self.destruction(x))).exp()
        answer = p.argmax(1, keepdim=True)
        return (p - destroyed).gather(1, answer).squeeze(1)


class Deyo(Learner):
    """Weighted entropy of the images whose answer depends on the object, on the norms before the last stage.

    Published, like SAR, with SGD and a learning rate that depends on the batch size. The authors' code cannot reset;
    this does.

    Args:
        model: any image classifier; gamma and beta of its last stage are skipped, unless `skip` says otherwise.
        threshold, margin, reference: see ObjectEntropy. The margin was 0.3 for ImageNet's ResNet-50 and 0.2 elsewhere;
            0.5 with five times the learning rate for spurious backgrounds.
        destruction: "patch", "pixel" or "occlusion"; see ObjectDestruction.
        antialias: see ObjectDestruction; it matters for sides that 4 does not divide.
        seed: of the permutations.
        options: see LearnerOptions. A learning rate that is given scales too, unless scale_lr=False.

    >>> import timm, torch
    >>> from spear_hf.baselines import Deyo
    >>> Deyo(timm.create_model("test_resnet")).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: float = 0.5,
        margin: float = 0.2,
        reference: float = 0.4,
        destruction: str = "patch",
        antialias: bool = True,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        destroy = ObjectDestruction(destruction, antialias=antialias, dice=Dice(seed))
        objective = ObjectEntropy(threshold, margin, reference, destroy)
        super().__init__(model, objective, scaled_optimizer_config(model), **before_last_stage(options))
