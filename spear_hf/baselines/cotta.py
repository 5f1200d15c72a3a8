"""CoTTA: a student follows its averaged teacher, and forgets at random (Wang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.augment import Augmentation
from spear_hf.baselines.dice import Dice
from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.objective import Batch, cross_entropy
from spear_hf.baselines.options import Options, given
from spear_hf.baselines.part import Part
from spear_hf.baselines.pixels import pixels_of
from spear_hf.baselines.published import nearest
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.teacher import MeanTeacher
from spear_hf.learning.objective import log_probabilities

CONFIDENCE = {10: 0.92, 100: 0.72, 1000: 0.1}
SYMMETRIC = {10: 0, 100: 0, 1000: 1}


@dataclass
class TeacherAnswer(Part):
    """The teacher's logits; their mean over augmented views where the source is unsure of the batch.

    Args:
        augmentation: gives the views.
        teacher: of the student.
        confidence: the mean probability of the source's answers below which views are taken; None takes what was
            published for the nearest number of classes: 0.92, 0.72 and 0.1 for 10, 100 and 1000.
        views: how many; each is a forward.
    """

    augmentation: Augmentation
    teacher: MeanTeacher = field(default_factory=MeanTeacher)
    confidence: float | None = None
    views: int = 32

    @torch.no_grad()
    def answer(self, batch: Batch) -> Tensor:
        """(B, K), before this batch is learned from."""
        limit = nearest(batch.logits.shape[1], CONFIDENCE) if self.confidence is None else self.confidence
        with batch.learned.holding(batch.learned.start):
            sure = log_probabilities(batch.forward(batch.x)).exp().amax(1).mean()
        with self.teacher.speaking(batch.learned):
            if bool(sure >= limit):
                return batch.forward(batch.x)
            total = torch.zeros_like(batch.logits)
            for _ in range(self.views):
                total += batch.forward(self.augmentation(batch.x))
            return total / self.views

    def maintain(self, learned: ParameterSet) -> None:
        """Moves the teacher."""
        self.teacher.maintain(learned)


@dataclass
class ConsistencyLoss(Part):
    """L = mean_i CE(teacher_i, student_i), or the mean of both directions.

    Args:
        symmetric: None takes what was published: both directions for 1000 classes, one for 10 and 100.
    """

    symmetric: bool | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """In nats."""
        loss = cross_entropy(batch.answer, batch.logits)
        if nearest(batch.logits.shape[1], SYMMETRIC) if self.symmetric is None else self.symmetric:
            loss = (loss + cross_entropy(batch.logits, batch.answer)) / 2
        return loss.mean()


@dataclass
class StochasticRestore(Part):
    """Each number of the student goes back to the source's with some probability, after each step.

    Args:
        probability: in [0, 1].
        dice: what decides.
    """

    probability: float = 0.01
    dice: Dice = field(default_factory=Dice)

    @torch.no_grad()
    def maintain(self, learned: ParameterSet) -> None:
        """Writes the student."""
        for parameter, source in zip(learned.parameters, learned.start, strict=True):
            back = self.dice.rand(*parameter.shape) < self.probability
            parameter.copy_(torch.where(back.to(parameter.device), source, parameter))


class Cotta(Learner):
    """A student learns what its teacher answers; the teacher answers for both. Learns every weight and bias.

    Published with Adam at 1e-3 for CIFAR, SGD with Nesterov momentum at 0.01 for ImageNet, where the probability of a
    restore is 0.001. Augments un-normalised pixels, as it must: clipping normalised ones cost 34 points. The authors'
    CIFAR code computes the views also where it does not use them; this does not.

    Args:
        model: any image classifier.
        confidence, views, symmetric: see TeacherAnswer and Imitation.
        momentum_teacher: see MeanTeacher.
        restore: probability; see StochasticRestore.
        mean, std: how the images were normalised, per channel; None takes what the model carries.
        seed: of the views and of the restores.
        options: see Options; where="norm" or "rsp" learns less, with the same teacher.

    Raises:
        ConfigError: nothing says how the images were normalised.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        confidence: float | None = None,
        views: int = 32,
        symmetric: bool | None = None,
        momentum_teacher: float = 0.999,
        restore: float = 0.01,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        augmentation = Augmentation(pixels_of(model, mean, std), dice=Dice(seed))
        teacher = TeacherAnswer(augmentation, MeanTeacher(momentum_teacher), confidence, views)
        upkeep = [teacher, StochasticRestore(restore, Dice(seed + 1))]
        everywhere: Options = {"where": "weights"}
        chosen: Options = {**everywhere, **given(options)}
        super().__init__(
            model, ConsistencyLoss(symmetric), OptimizerConfig("adam", 1e-3), answer=teacher, upkeep=upkeep, **chosen
        )
