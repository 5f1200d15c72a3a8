"""What a method may do beside lowering its objective: answer otherwise, and look after its parameters."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.objective import Batch
from spear_hf.baselines.part import Part


class Answer(Protocol):
    """What is answered in place of the logits; with `settings`, state and `reset` of a Part."""

    def answer(self, batch: Batch) -> Tensor:
        """(B, K)."""
        ...


class Upkeep(Protocol):
    """What is done to the learned parameters after each step; with `settings`, state and `reset` of a Part."""

    def maintain(self, learned: ParameterSet) -> None:
        """Changes the parameters, or what is remembered of them."""
        ...


@dataclass
class OwnLogits(Part):
    """The model's own logits."""

    def answer(self, batch: Batch) -> Tensor:
        """As they are."""
        return batch.logits
