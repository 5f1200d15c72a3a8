"""CMF: ROID's objective, and a Kalman filter that lets the source follow the target (Lee and Chang 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.options import Options
from spear_hf.baselines.part import Part
from spear_hf.baselines.roid import PriorCorrection, certain_diverse
from spear_hf.baselines.rule import OptimizerConfig

VIT_PARAMETERS = 38_400
"""gamma and beta of ViT-B's layer norms, for which the noise was published."""


@dataclass
class KalmanFilter(Part):
    """A hidden model h between source and learner, to which the learner is drawn after each step.

        h <- alpha h + (1 - alpha) w_source,  v <- alpha^2 v + q              predict
        b = r / (v + r), r = 1 - q;  v <- b v;  h <- b h + (1 - b) w          update
        w <- gamma w + (1 - gamma) h                                          ensemble

    b is not let below 0.89, and is 1 from 0.9999 on. q = noise * (parameters / 38,400): with few of them, RSPs say, b
    is 1 and h the source, which leaves ROID's ensemble.

    Args:
        alpha: how well the hidden model keeps what it has learned.
        gamma: how much of the learner stays.
        noise: of the process, for ViT-B's parameters; 2.5e-4 was published for ResNet-50.
    """

    alpha: float = 0.99
    gamma: float = 0.99
    noise: float = 5e-3
    hidden: list[Tensor] | None = field(init=False, default=None)
    variance: float = field(init=False, default=0.0)

    def maintain(self, learned: ParameterSet) -> None:
        """Moves the hidden model, then the parameters."""
        hidden = self.hidden or learned.start
        predicted = [h.lerp(source, 1 - self.alpha) for h, source in zip(hidden, learned.start, strict=True)]
        kept = self._gain(self.noise * learned.count / VIT_PARAMETERS)
        self.hidden = [h.lerp(w.detach(), 1 - kept) for h, w in zip(predicted, learned.parameters, strict=True)]
        learned.pull(self.hidden, 1 - self.gamma)

    def _gain(self, q: float) -> float:
        """How much of the prediction is kept, in [0.89, 1]; the variance moves on."""
        self.variance = self.alpha**2 * self.variance + q
        kept = (1 - q) / (self.variance + 1 - q)
        kept = 1.0 if kept >= 0.9999 else max(kept, 0.89)
        self.variance *= kept
        return kept


class Cmf(Learner):
    """ROID with the Kalman filter in place of its fixed pull towards the source.

    Published with SGD, at 2e-4 and noise 2.5e-4 for ResNet-50, at 2.5e-4 and noise 5e-3 for ViT-B; Adam at 1e-3 for
    CIFAR. The authors run the model in half precision, which rounds such steps away, and a common collection's reset
    keeps the variance; neither is so here. Parameters that are not learned are the source's in all three models, and
    are not copied.

    Args:
        model: any image classifier.
        alpha, gamma, noise: see KalmanFilter.
        temperature, prior, mean, std, seed: as for Roid.
        options: see Options.

    Raises:
        ConfigError: nothing says how the images were normalised.
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
        **options: Unpack[Options],
    ) -> None:
        objective = certain_diverse(model, temperature, mean, std, seed)
        answer, upkeep = PriorCorrection(prior), [KalmanFilter(alpha, gamma, noise)]
        super().__init__(model, objective, OptimizerConfig("adam", 1e-3), answer=answer, upkeep=upkeep, **options)
