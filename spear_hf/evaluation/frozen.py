"""Frozen: a steered model that answers a stream and learns nothing."""

from typing import Any

from torch import Tensor

from spear_hf.baselines import Source
from spear_hf.steering.model import SpearModel
from spear_hf.utils.distributed import BatchShard


class Frozen(Source):
    """The active adapter as it is; under several processes with the batch statistics of the global batch.

    Args:
        model: the steered model.
        accelerator: as for `Source`.
    """

    model: SpearModel

    def __init__(self, model: SpearModel, *, accelerator: Any = None) -> None:
        super().__init__(model, accelerator=accelerator)

    def answer(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The logits of x under the statistics of the global batch."""
        with self.model.sharding(shard):
            return super().answer(x, shard)
