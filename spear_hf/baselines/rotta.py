"""RoTTA: a balanced memory, robust batch norms, a slow teacher; for classes that come in runs (Yuan et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.augment import Augmentation
from spear_hf.baselines.descent import descend
from spear_hf.baselines.dice import Dice
from spear_hf.baselines.in_place import norm_affine
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.memory import CategoryMemory
from spear_hf.baselines.objective import Batch, cross_entropy
from spear_hf.baselines.options import Options, given
from spear_hf.baselines.part import Part
from spear_hf.baselines.pixels import pixels_of
from spear_hf.baselines.robust import RobustStatistics
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.teacher import MeanTeacher
from spear_hf.errors import ConfigError
from spear_hf.learning.objective import log_probabilities
from spear_hf.learning.record import NON_FINITE_LOGITS

WAITING = "too few images since the last step"


@dataclass
class TimelyConsistency(Part):
    """L = mean_i w_i CE(teacher_i, student_i) over the memory, w_i falling with the age of an image.

    Args:
        memory: whose images are learned from.
        augmentation: what the student sees in place of them.
        teacher: what it is to answer.
        statistics: of the batch norms of both.
    """

    memory: CategoryMemory
    augmentation: Augmentation
    teacher: MeanTeacher
    statistics: RobustStatistics

    def __call__(self, batch: Batch) -> Tensor:
        """In nats; the batch is the memory, its answer the teacher's."""
        return (self.memory.timeliness(batch.x.device) * cross_entropy(batch.answer, batch.logits)).mean()


class Rotta(Learner):
    """The teacher answers; every 64 images the student takes one step on the memory, and the teacher follows it.

    Published with Adam at 1e-3 on gamma and beta of the normalisation layers. The authors' code replaces batch norms,
    which loses the activation of timm's; here hooks act before them.

    Args:
        model: any image classifier.
        capacity, lambda_t, lambda_u: see CategoryMemory.
        every: images between two steps.
        momentum_statistics: see RobustStatistics.
        momentum_teacher: see MeanTeacher.
        mean, std: how the images were normalised, per channel; None takes what the model carries.
        seed: of the augmentations.
        options: see Options. Elsewhere than on the norms, the statistics are those of that place.

    Raises:
        ConfigError: nothing says how the images were normalised.
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
        **options: Unpack[Options],
    ) -> None:
        if capacity < 1 or every < 1:
            raise ConfigError(f"capacity={capacity}, every={every} are not allowed; give at least 1, published is 64")
        self.every = every
        memory = CategoryMemory(capacity, lambda_t, lambda_u)
        augmentation = Augmentation(pixels_of(model, mean, std), dice=Dice(seed))
        teacher, statistics = MeanTeacher(momentum_teacher), RobustStatistics(momentum_statistics)
        norms = partial(norm_affine, skip=options.get("skip"), statistics=statistics.attach)
        chosen: Options = {**given(options)}
        if chosen.get("where", "norm") == "norm":
            chosen["where"] = norms
        super().__init__(
            model, TimelyConsistency(memory, augmentation, teacher, statistics), OptimizerConfig("adam", 1e-3), **chosen
        )

    def _answer_and_learn(self, x: Tensor) -> tuple[Tensor, float | None, str | None]:
        objective, memory = self.objective, self.objective.memory
        with objective.teacher.speaking(self.learned), objective.statistics.acting("teacher"):
            answer = self.where.forward(x)
        self.whole = self.whole or len(x)
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
        """One step of the student on the memory, then of the teacher; the loss, and why none was taken."""
        objective = self.objective
        before = objective.statistics.state_dict()
        x = torch.stack(objective.memory.images)
        with objective.teacher.speaking(self.learned), objective.statistics.acting("teacher", learning=True):
            answer = self.where.forward(x)
        with objective.statistics.acting("student", learning=True):
            logits = self.where.forward(objective.augmentation(x))
        batch = Batch(x, logits, self.where.forward, self.learned, len(x), answer)
        loss = objective(batch)
        if (skipped := descend(loss, self.optimizer)) is None:
            objective.teacher.maintain(self.learned)
        else:
            objective.statistics.load_state_dict(before, self.learned.device)
        return float(loss.detach()), skipped

    def settings(self) -> dict[str, Any]:
        """With the interval of steps."""
        return super().settings() | {"every": self.every}
