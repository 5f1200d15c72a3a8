"""CMF: ROID's objective, with a Kalman filter between source and learner (Lee and Chang 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.component import Component
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.baselines.roid import PriorCorrection, certain_diverse

VIT_PARAMETERS = 38_400
"""gamma and beta of ViT-B's layer norms, for which the noise was published."""


@dataclass
class KalmanFilter(Component):
    """A hidden model h between source and learner; after each step the learner w is averaged with it.

        h <- alpha h + (1 - alpha) w_source,  v <- alpha^2 v + q              predict
        b = r / (v + r), r = 1 - q;  v <- b v;  h <- b h + (1 - b) w          update
        w <- gamma w + (1 - gamma) h                                          ensemble

    b is at least 0.89, and 1 from 0.9999 on. q = noise * (parameters / 38,400). With few parameters, such as RSPs, b is
    1 and h is the source, which is ROID's ensemble.

    Args:
        alpha: how much the hidden model keeps of what it has learned.
        gamma: how much the learner keeps of its own parameters.
        noise: of the process, for ViT-B's parameters; 2.5e-4 was published for ResNet-50.

    >>> import torch
    >>> from spear_hf.baselines.cmf import KalmanFilter
    >>> from spear_hf.baselines.parameter_set import ParameterSet
    >>> learned = ParameterSet([torch.nn.Parameter(torch.zeros(1))])
    >>> learned.put([torch.ones(1)])
    >>> KalmanFilter(gamma=0.75).maintain(learned)
    >>> learned.snapshot()
    [tensor([0.7500])]
    """

    alpha: float = 0.99
    gamma: float = 0.99
    noise: float = 5e-3
    hidden: list[Tensor] | None = field(init=False, default=None)
    variance: float = field(init=False, default=0.0)

    def maintain(self, learned: ParameterSet) -> None:
        """Move the hidden model, then the parameters."""
        hidden = self.hidden or learned.start
        predicted = [h.lerp(source, 1 - self.alpha) for h, source in zip(hidden, learned.start, strict=True)]
        kept = self._gain(self.noise * learned.count / VIT_PARAMETERS)
        self.hidden = [h.lerp(w.detach(), 1 - kept) for h, w in zip(predicted, learned.parameters, strict=True)]
        learned.pull(self.hidden, 1 - self.gamma)

    def _gain(self, q: float) -> float:
        """b, how much of the predicted h is kept, in [0.89, 1]; updates the variance."""
        self.variance = self.alpha**2 * self.variance + q
        kept = (1 - q) / (self.variance + 1 - q)
        kept = 1.0 if kept >= 0.9999 else max(kept, 0.89)
        self.variance *= kept
        return kept


class Cmf(Learner):
    """ROID with a Kalman filter in place of the fixed average with the source.

    Published with SGD, at 2e-4 and noise 2.5e-4 for ResNet-50, at 2.5e-4 and noise 5e-3 for ViT-B; Adam at 1e-3 for
    CIFAR. The authors run the model in half precision, which rounds such steps away, and the reset of a common
    collection keeps the variance; here neither is done.

    Args:
        model: any image classifier.
        alpha, gamma, noise: see KalmanFilter.
        temperature, prior, mean, std, seed: as for Roid.
        options: see LearnerOptions.

    Raises:
        ConfigError: nothing says how the images were normalised.

    >>> import timm, torch
    >>> from spear_hf.baselines import Cmf
    >>> Cmf(timm.create_model("test_resnet")).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 0.99,
        gamma: float = 0.99,
        noise: float = 5e-3,
        temperature: float = 1 / 3,
        prior: str = "predictions",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        objective = certain_diverse(model, temperature, mean, std, seed)
        answer, upkeep = PriorCorrection(prior), [KalmanFilter(alpha, gamma, noise)]
        super().__init__(model, objective, OptimizerConfig("adam", 1e-3), answer=answer, upkeep=upkeep, **options)
