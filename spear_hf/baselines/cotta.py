"""CoTTA: a student learns from its averaged teacher, and is restored at random (Wang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.augmentation import Augmentation, normalization_of
from spear_hf.baselines.component import Component, Dice
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions, given
from spear_hf.baselines.losses import Batch, cross_entropy
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.parameter_set import MeanTeacher, ParameterSet
from spear_hf.baselines.published import for_num_classes
from spear_hf.learning.objective import log_probabilities

CONFIDENCE = {10: 0.92, 100: 0.72, 1000: 0.1}
SYMMETRIC = {10: 0, 100: 0, 1000: 1}


@dataclass
class TeacherAnswer(Component):
    """Answers with the teacher's logits, averaged over augmented views if the source is unsure of the batch.

    Args:
        augmentation: gives the views.
        teacher: of the student.
        confidence: average over views if the mean probability of the source's answers is below this; None takes what
            was published for the nearest number of classes: 0.92, 0.72 and 0.1 for 10, 100 and 1000.
        views: how many; each costs a forward.

    >>> from spear_hf.baselines.augmentation import Augmentation, Normalization
    >>> from spear_hf.baselines.cotta import TeacherAnswer
    >>> TeacherAnswer(Augmentation(Normalization((0.5,) * 3, (0.5,) * 3)), views=4).settings()["views"]
    4
    """

    augmentation: Augmentation
    teacher: MeanTeacher = field(default_factory=MeanTeacher)
    confidence: float | None = None
    views: int = 32

    @torch.no_grad()
    def answer(self, batch: Batch) -> Tensor:
        """(B, K), before this batch is learned from."""
        limit = for_num_classes(batch.logits.shape[1], CONFIDENCE) if self.confidence is None else self.confidence
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
        """Move the teacher towards the student."""
        self.teacher.maintain(learned)


@dataclass
class ConsistencyLoss(Component):
    """L = mean_i CE(teacher_i, student_i), or the mean of both directions.

    Args:
        symmetric: None takes what was published: both directions for 1000 classes, one for 10 and 100.

    >>> from spear_hf.baselines.cotta import ConsistencyLoss
    >>> ConsistencyLoss(symmetric=True).settings()
    {'kind': 'ConsistencyLoss', 'symmetric': True}
    """

    symmetric: bool | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """The loss, in nats."""
        loss = cross_entropy(batch.answer, batch.logits)
        if for_num_classes(batch.logits.shape[1], SYMMETRIC) if self.symmetric is None else self.symmetric:
            loss = (loss + cross_entropy(batch.logits, batch.answer)) / 2
        return loss.mean()


@dataclass
class StochasticRestore(Component):
    """Restores each number of the student to the source's with some probability, after each step.

    Args:
        probability: in [0, 1].
        dice: draws the numbers to restore.

    >>> import torch
    >>> from spear_hf.baselines.cotta import StochasticRestore
    >>> from spear_hf.baselines.parameter_set import ParameterSet
    >>> learned = ParameterSet([torch.nn.Parameter(torch.zeros(2))])
    >>> learned.put([torch.ones(2)])
    >>> StochasticRestore(probability=1.0).maintain(learned)
    >>> learned.snapshot()
    [tensor([0., 0.])]
    """

    probability: float = 0.01
    dice: Dice = field(default_factory=Dice)

    @torch.no_grad()
    def maintain(self, learned: ParameterSet) -> None:
        """Write the source's values into the drawn numbers."""
        for parameter, source in zip(learned.parameters, learned.start, strict=True):
            back = self.dice.rand(*parameter.shape) < self.probability
            parameter.copy_(torch.where(back.to(parameter.device), source, parameter))


class Cotta(Learner):
    """The teacher answers, and the student learns every weight and bias from the teacher's answers.

    Published with Adam at 1e-3 for CIFAR, SGD with Nesterov momentum at 0.01 for ImageNet, where the probability of a
    restore is 0.001. Views are taken of un-normalised pixels: clipping normalised ones costs 34 points. The authors'
    CIFAR code computes the views also if it does not use them; this does not.

    Args:
        model: any image classifier.
        confidence, views, symmetric: see TeacherAnswer and ConsistencyLoss.
        momentum_teacher: see MeanTeacher.
        restore: the probability of StochasticRestore.
        mean, std: how the images were normalised, per channel; None takes what the model carries.
        seed: of the views and of the restores.
        options: see LearnerOptions; where="norm" or "rsp" learns fewer parameters.

    Raises:
        ConfigError: nothing says how the images were normalised.

    >>> import timm, torch
    >>> from spear_hf.baselines import Cotta
    >>> Cotta(timm.create_model("test_resnet"), confidence=0.0).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
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
        **options: Unpack[LearnerOptions],
    ) -> None:
        augmentation = Augmentation(normalization_of(model, mean, std), dice=Dice(seed))
        teacher = TeacherAnswer(augmentation, MeanTeacher(momentum_teacher), confidence, views)
        upkeep = [teacher, StochasticRestore(restore, Dice(seed + 1))]
        everywhere: LearnerOptions = {"where": "weights"}
        chosen: LearnerOptions = {**everywhere, **given(options)}
        super().__init__(
            model, ConsistencyLoss(symmetric), OptimizerConfig("adam", 1e-3), answer=teacher, upkeep=upkeep, **chosen
        )
