"""ROID: likelihood ratio and consistency of certain, diverse images, averaged with the source (Marsden et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from spear_hf.baselines.augmentation import Augmentation, normalization_of
from spear_hf.baselines.component import Component, Dice
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.losses import Batch, cross_entropy, entropy
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.errors import ConfigError
from spear_hf.learning.objective import log_probabilities


@dataclass
class CertainDiverse(Component):
    """L = 1/B sum_i w_i (SLR_i + SCE_i) over the images that differ from what has been seen so far.

    d_i = 1 - cos(c, p_i) and u_i = -H_i are both scaled to [0, 1] over the batch; c is a moving average (0.9) of the
    mean prediction and starts uniform. w_i = exp(d_i u_i / T) if d_i >= mean d, else 0. SCE_i is the symmetric
    cross-entropy between an image and one augmented view of it. B is the nominal batch size.

    Args:
        augmentation: gives the views.
        temperature: T.

    >>> from spear_hf.baselines.augmentation import Augmentation, Normalization
    >>> from spear_hf.baselines.roid import CertainDiverse
    >>> objective = CertainDiverse(Augmentation(Normalization((0.5,) * 3, (0.5,) * 3), blur=False))
    """

    augmentation: Augmentation
    temperature: float = 1 / 3
    classes: Tensor | None = field(init=False, default=None)

    def __call__(self, batch: Batch) -> Tensor:
        """The loss; confident answers make the likelihood ratio, and so the loss, negative."""
        weights = self.weights(batch.logits.detach())
        kept = weights > 0
        logits = batch.logits[kept]
        views = batch.forward(self.augmentation(batch.x[kept]))
        symmetric = (cross_entropy(logits, views) + cross_entropy(views, logits)) / 2
        return (weights[kept] * (soft_likelihood_ratio(logits) + symmetric)).sum() / batch.nominal_batch_size

    @torch.no_grad()
    def weights(self, logits: Tensor) -> Tensor:
        """w_i, (B,), 0 for images that are left out; updates c."""
        p = log_probabilities(logits).exp()
        seen = torch.full_like(p[0], 1 / p.shape[1]) if self.classes is None else self.classes
        diverse = scaled(1 - F.cosine_similarity(seen[None], p, dim=1))
        certain = scaled(-entropy(logits))
        self.classes = 0.9 * seen + 0.1 * p.mean(0)
        return torch.exp(diverse * certain / self.temperature) * (diverse >= diverse.mean())


def scaled(values: Tensor) -> Tensor:
    """(B,) shifted and scaled to [0, 1]; all 0 if they are equal, as in a batch of one.

    >>> import torch
    >>> from spear_hf.baselines.roid import scaled
    >>> scaled(torch.tensor([1.0, 2.0, 5.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """
    low, high = values.aminmax()
    return (values - low) / (high - low) if bool(high > low) else torch.zeros_like(values)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """(B,), -sum_k p_k log(p_k / (1 - p_k)), with p_k at most 0.99, which bounds the gradient of confident answers.

    >>> import torch
    >>> from spear_hf.baselines.roid import soft_likelihood_ratio
    >>> soft_likelihood_ratio(torch.tensor([[0.0, 99.0]])).round(decimals=2)
    tensor([-4.5500])
    """
    p = log_probabilities(logits).exp().clamp_max(0.99)
    return -(p * torch.log(p / (1 - p) + 1e-5)).sum(1)


@dataclass
class PriorCorrection(Component):
    """Answers weighted by the batch's class prior: p_i pi~, with pi~ = (pi + s) / (1 + s K) and pi = mean_i p_i.

    s = max(1/B, 1/K) / max pi, so that small batches change little.

    Args:
        of: "predictions" as in the paper; "logits" as in the authors' code, which multiplies logits and so lowers a
            frequent class with a negative logit; "none".

    >>> from spear_hf.baselines.roid import PriorCorrection
    >>> PriorCorrection("none").settings()
    {'kind': 'PriorCorrection', 'of': 'none'}
    """

    of: str = "predictions"

    def __post_init__(self) -> None:
        if self.of not in ("predictions", "logits", "none"):
            raise ConfigError(f'prior={self.of!r} is not known; allowed are "predictions", "logits", "none"')

    @torch.no_grad()
    def answer(self, batch: Batch) -> Tensor:
        """(B, K)."""
        logits = batch.logits
        log_p = log_probabilities(logits)
        prior = log_p.exp().mean(0)
        smooth = max(1 / len(logits), 1 / logits.shape[1]) / prior.max()
        prior = (prior + smooth) / (1 + smooth * logits.shape[1])
        if self.of == "none":
            return logits
        return logits * prior if self.of == "logits" else log_p + prior.log()


@dataclass
class WeightEnsemble(Component):
    """w <- kept w + (1 - kept) w_source, after each step.

    Args:
        kept: in [0, 1]; 1 is no averaging.

    >>> import torch
    >>> from spear_hf.baselines.parameter_set import ParameterSet
    >>> from spear_hf.baselines.roid import WeightEnsemble
    >>> learned = ParameterSet([torch.nn.Parameter(torch.zeros(1))])
    >>> learned.put([torch.ones(1)])
    >>> WeightEnsemble(0.75).maintain(learned)
    >>> learned.snapshot()
    [tensor([0.7500])]
    """

    kept: float = 0.99

    def maintain(self, learned: ParameterSet) -> None:
        """Move the parameters towards the source."""
        learned.pull(learned.start, 1 - self.kept)


class Roid(Learner):
    """Certainty- and diversity-weighted likelihood ratio and consistency; parameters stay near the source's.

    Published with Adam at 1e-3 for CIFAR, SGD at 2.5e-4 for ImageNet. If all images of a batch are equal, the authors'
    weights are 0 / 0 and the model is NaN after one step; here they are 1. The prior corrects predictions, as in the
    paper; see PriorCorrection.

    Args:
        model: any image classifier.
        temperature, ensemble, prior: see CertainDiverse, WeightEnsemble and PriorCorrection.
        mean, std: how the images were normalised, per channel; None takes what the model carries.
        seed: of the augmentations.
        options: see LearnerOptions.

    Raises:
        ConfigError: nothing says how the images were normalised.

    >>> import timm, torch
    >>> from spear_hf.baselines import Roid
    >>> Roid(timm.create_model("test_resnet")).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1 / 3,
        ensemble: float = 0.99,
        prior: str = "predictions",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        objective = certain_diverse(model, temperature, mean, std, seed)
        answer, upkeep = PriorCorrection(prior), [WeightEnsemble(ensemble)]
        super().__init__(model, objective, OptimizerConfig("adam", 1e-3), answer=answer, upkeep=upkeep, **options)


def certain_diverse(
    model: nn.Module, temperature: float, mean: Sequence[float] | None, std: Sequence[float] | None, seed: int
) -> CertainDiverse:
    """ROID's objective, for images that are normalised by `mean` and `std`, or as `model` says.

    >>> import torch
    >>> from spear_hf.baselines.roid import certain_diverse
    >>> certain_diverse(torch.nn.Linear(2, 2), 0.5, (0.5,) * 3, (0.5,) * 3, seed=0).temperature
    0.5
    """
    augmentation = Augmentation(normalization_of(model, mean, std), blur=False, padding="reflect", dice=Dice(seed))
    return CertainDiverse(augmentation, temperature)
