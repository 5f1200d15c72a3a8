"""Whether a batch is of another domain than what the batch norms remember: their statistics say it first (ours).

A memory of statistics is right while the stream stays in one domain, and wrong from the first batch of the next.
"""

import math
from collections.abc import Mapping
from typing import Any

WARM = 2  # batches before what is usual is known
KEEP = 15 / 16  # of what is usual, at each batch


class DomainShiftDetector:
    """How far batches are from what is remembered, layer by layer, and what is usual there.

    Args:
        factor: how many times further than usual, the geometric mean over the layers, is another domain.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.batches = 0
        self.usual: dict[str, float] = {}

    def has_come(self, apart: Mapping[str, float]) -> bool:
        """Whether this batch is of another domain; every call is one batch.

        Args:
            apart: layer -> log of the distance to what is remembered, over what sampling alone lets expect.
        """
        known = {layer: value for layer, value in apart.items() if math.isfinite(value)}
        if not known:
            return False
        limit = math.log(self.factor)
        beyond = {layer: value - self.usual.get(layer, value) for layer, value in known.items()}
        come = self.batches >= WARM and sum(beyond.values()) / len(beyond) > limit
        share = 1 - min(KEEP, self.batches / (self.batches + 1))
        for layer, value in known.items():  # a stream that always jumps gets used to it
            self.usual[layer] = self.usual.get(layer, value) + share * min(beyond[layer], limit)
        self.batches += 1
        return come

    def state_dict(self) -> dict[str, Any]:
        """What is usual."""
        return {"batches": self.batches, "usual": dict(self.usual)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.batches, self.usual = state["batches"], dict(state["usual"])
