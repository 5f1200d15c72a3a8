"""Frozen: a steered model that answers a stream and learns nothing."""

from typing import Any

from torch import Tensor

from spear_hf.collective import Share
from spear_hf.methods import Source
from spear_hf.model import SpearModel


class Frozen(Source):
    """The active adapter as it is; under several processes with the batch statistics of the global batch.

    Args:
        model: the steered model.
        accelerator: as for `Source`.
    """

    model: SpearModel

    def __init__(self, model: SpearModel, *, accelerator: Any = None) -> None:
        super().__init__(model, accelerator=accelerator)

    def answer(self, x: Tensor, share: Share) -> Tensor:
        """The logits of x under the statistics of the global batch."""
        with self.model.sharing(share):
            return super().answer(x, share)
