"""MeanTeacher: the learner's past, averaged, which changes more slowly than the learner."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.part import Part


@dataclass
class MeanTeacher(Part):
    """t <- momentum t + (1 - momentum) w, after each step; the source at the start.

    Args:
        momentum: in [0, 1].
    """

    momentum: float = 0.999
    values: list[Tensor] | None = field(init=False, default=None)

    @contextmanager
    def speaking(self, learned: ParameterSet) -> Iterator[None]:
        """Inside, the model is the teacher; no graph is made."""
        with torch.no_grad(), learned.holding(self.values or learned.start):
            yield

    def maintain(self, learned: ParameterSet) -> None:
        """Moves the teacher."""
        pairs = zip(self.values or learned.start, learned.parameters, strict=True)
        self.values = [t.lerp(w.detach(), 1 - self.momentum) for t, w in pairs]
