"""RoTTA: a balanced memory, robust batch norms, a slow teacher; for classes that come in runs (Yuan et al. 2023)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.adapted_parameters import norm_affine
from spear_hf.baselines.augmentation import Augmentation, normalization_of
from spear_hf.baselines.component import Component, Dice
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions, given
from spear_hf.baselines.losses import Batch, cross_entropy
from spear_hf.baselines.norms import RobustStatistics
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.parameter_set import MeanTeacher
from spear_hf.errors import ConfigError
from spear_hf.learning.objective import log_probabilities
from spear_hf.learning.optimize import descend
from spear_hf.learning.record import NON_FINITE_LOGITS

WAITING = "too few images since the last step"


@dataclass
class CategoryMemory(Component):
    """Up to N images of the stream, about N / K of each predicted class; RoTTA's CSTU.

    The score of an image is lambda_t / (1 + exp(-age / N)) + lambda_u H / log K; its age counts the images that came
    since. A new image of a class below its quota N / K is taken if there is room, or else in place of the image with
    the highest score in the largest classes. A new image of a class at its quota replaces the highest score in its own
    class. An image is replaced only if its score is above that of the new one.

    Args:
        capacity: N.
        lambda_t: weight of age.
        lambda_u: weight of uncertainty.

    >>> import torch
    >>> from spear_hf.baselines.rotta import CategoryMemory
    >>> memory = CategoryMemory(capacity=2)
    >>> [memory.add(torch.zeros(1), label=0, uncertainty=h, classes=2) for h in (0.5, 0.1, 0.6)]
    [True, True, False]
    """

    capacity: int = 64
    lambda_t: float = 1.0
    lambda_u: float = 1.0
    seen: int = field(init=False, default=0)
    images: list[Tensor] = field(init=False, default_factory=list)
    labels: list[int] = field(init=False, default_factory=list)
    uncertainties: list[float] = field(init=False, default_factory=list)
    ages: list[int] = field(init=False, default_factory=list)

    def add(self, image: Tensor, label: int, uncertainty: float, classes: int) -> bool:
        """Offer an image to the memory; returns whether it was taken. The age of all others grows by one.

        Args:
            image: (C, H, W).
            label: the predicted class.
            uncertainty: entropy in nats.
            classes: K.
        """
        rivals = self._rivals(label, classes)
        taken = True
        if rivals:
            worst = max(rivals, key=lambda i: self._score(self.ages[i], self.uncertainties[i], classes))
            score = self._score(self.ages[worst], self.uncertainties[worst], classes)
            taken = score > self._score(0, uncertainty, classes)
            if taken:
                self._remove(worst)
        if taken:
            self.images.append(image.clone())
            self.labels.append(label)
            self.uncertainties.append(uncertainty)
            self.ages.append(0)
        self.ages = [age + 1 for age in self.ages]
        self.seen += 1
        return taken

    def timeliness(self, device: torch.device) -> Tensor:
        """exp(-age / N) / (1 + exp(-age / N)) of each image, (n,) in (0, 1/2)."""
        return torch.sigmoid(-torch.tensor(self.ages, dtype=torch.float32, device=device) / self.capacity)

    def _rivals(self, label: int, classes: int) -> list[int]:
        """The places, one of which an image of this class replaces; empty if there is room."""
        if self.labels.count(label) >= self.capacity / classes:
            return [i for i, other in enumerate(self.labels) if other == label]
        if len(self.images) < self.capacity:
            return []
        most = max(self.labels.count(other) for other in self.labels)
        return [i for i, other in enumerate(self.labels) if self.labels.count(other) == most]

    def _score(self, age: int, uncertainty: float, classes: int) -> float:
        return self.lambda_t / (1 + math.exp(-age / self.capacity)) + self.lambda_u * uncertainty / math.log(classes)

    def _remove(self, place: int) -> None:
        for kept in (self.images, self.labels, self.uncertainties, self.ages):
            del kept[place]


@dataclass
class TimelyConsistency(Component):
    """L = mean_i w_i CE(teacher_i, student_i) over the memory; w_i falls with the age of an image.

    Args:
        memory: holds the images to learn from.
        augmentation: gives the views of them that the student sees.
        teacher: of the student.
        statistics: of the batch norms of both.

    >>> from spear_hf.baselines.augmentation import Augmentation, Normalization
    >>> from spear_hf.baselines.norms import RobustStatistics
    >>> from spear_hf.baselines.parameter_set import MeanTeacher
    >>> from spear_hf.baselines.rotta import CategoryMemory, TimelyConsistency
    >>> view = Augmentation(Normalization((0.5,) * 3, (0.5,) * 3))
    >>> objective = TimelyConsistency(CategoryMemory(), view, MeanTeacher(), RobustStatistics())
    """

    memory: CategoryMemory
    augmentation: Augmentation
    teacher: MeanTeacher
    statistics: RobustStatistics

    def __call__(self, batch: Batch) -> Tensor:
        """The loss, in nats, of a batch that is the memory, with the teacher's answer."""
        return (self.memory.timeliness(batch.x.device) * cross_entropy(batch.answer, batch.logits)).mean()


class Rotta(Learner):
    """The teacher answers; every 64 images the student takes one step on the memory, and the teacher follows.

    Published with Adam at 1e-3 on gamma and beta of the normalisation layers. The authors' code replaces batch norms,
    which loses the activation of timm's; hooks do not.

    Args:
        model: any image classifier.
        capacity, lambda_t, lambda_u: see CategoryMemory.
        every: images between two steps.
        momentum_statistics: see RobustStatistics.
        momentum_teacher: see MeanTeacher.
        mean, std: how the images were normalised, per channel; None takes what the model carries.
        seed: of the augmentations.
        options: see LearnerOptions. With another `where` than "norm", the robust statistics are not used.

    Raises:
        ConfigError: nothing says how the images were normalised.

    >>> import timm, torch
    >>> from spear_hf.baselines import Rotta
    >>> rotta = Rotta(timm.create_model("test_resnet"), every=2)
    >>> rotta.step(torch.randn(2, 3, 32, 32)).shape, rotta.last.adapted
    (torch.Size([2, 1000]), True)
    """

    objective: TimelyConsistency

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 64,
        every: int = 64,
        lambda_t: float = 1.0,
        lambda_u: float = 1.0,
        momentum_statistics: float = 0.05,
        momentum_teacher: float = 0.999,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        if capacity < 1 or every < 1:
            raise ConfigError(f"capacity={capacity}, every={every} are not allowed; give at least 1, published is 64")
        self.every = every
        memory = CategoryMemory(capacity, lambda_t, lambda_u)
        augmentation = Augmentation(normalization_of(model, mean, std), dice=Dice(seed))
        teacher, statistics = MeanTeacher(momentum_teacher), RobustStatistics(momentum_statistics)
        norms = partial(norm_affine, skip=options.get("skip"), statistics=statistics.attach)
        chosen: LearnerOptions = {**given(options)}
        if chosen.get("where", "norm") == "norm":
            chosen["where"] = norms
        super().__init__(
            model, TimelyConsistency(memory, augmentation, teacher, statistics), OptimizerConfig("adam", 1e-3), **chosen
        )

    def _answer_and_learn(self, x: Tensor) -> tuple[Tensor, float | None, str | None]:
        objective, memory = self.objective, self.objective.memory
        with objective.teacher.speaking(self.learned), objective.statistics.acting("teacher"):
            answer = self.adapted.forward(x)
        self.nominal_batch_size = self.nominal_batch_size or len(x)
        if not bool(torch.isfinite(answer).all()):
            return answer, None, NON_FINITE_LOGITS
        p = log_probabilities(answer).exp()
        labels, uncertainties = answer.argmax(1).tolist(), (-(p * torch.log(p + 1e-6)).sum(1)).tolist()
        loss, skipped = None, WAITING
        for image, label, uncertainty in zip(x, labels, uncertainties, strict=True):
            memory.add(image, label, uncertainty, answer.shape[1])
            if memory.seen % self.every == 0:
                loss, why = self._learn_from_memory()
                skipped = why if skipped is not None else None
        return answer, loss, skipped

    def _learn_from_memory(self) -> tuple[float, str | None]:
        """One step of the student on the memory, then of the teacher; returns the loss, and why no step was taken."""
        objective = self.objective
        before = objective.statistics.state_dict()
        x = torch.stack(objective.memory.images)
        with objective.teacher.speaking(self.learned), objective.statistics.acting("teacher", learning=True):
            answer = self.adapted.forward(x)
        with objective.statistics.acting("student", learning=True):
            logits = self.adapted.forward(objective.augmentation(x))
        batch = Batch(x, logits, self.adapted.forward, self.learned, len(x), answer)
        loss = objective(batch)
        if (skipped := descend(loss, self.optimizer)) is None:
            objective.teacher.maintain(self.learned)
        else:
            objective.statistics.load_state_dict(before, self.learned.device)
        return float(loss.detach()), skipped

    def settings(self) -> dict[str, Any]:
        """With the interval of steps."""
        return super().settings() | {"every": self.every}
