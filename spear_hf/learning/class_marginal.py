"""ClassMarginal: how often each class was predicted for about the last M images of the stream (ours).

Few answers cannot be of all classes, and asking a batch of four for that does harm. Over a stream they can be:
`SpearConfig.memory_images` balances the classes of the stream in place of those of each batch.
"""

import math
from typing import Any

import torch
from torch import Tensor


class ClassMarginal:
    """The mean prediction (K,) of the stream; a batch of B images fades what was there by exp(-B / images).

    Args:
        images: M, at least 1.
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.clear()

    def clear(self) -> None:
        """Forget the stream."""
        self._mean: Tensor | None = None
        self._weight = 0.0

    def joined(self, mean: Tensor, count: int) -> Tensor:
        """(K,), the mean prediction of what is remembered and of a batch of `count` images with mean `mean`."""
        if self._mean is None:
            return mean
        share = (1 - self._fading(count)) / self._weight_with(count)
        return torch.lerp(self._mean.to(mean), mean, share)

    def add(self, mean: Tensor, count: int) -> None:
        """Remember this batch."""
        self._mean, self._weight = self.joined(mean, count), self._weight_with(count)

    def rests_on(self, count: int) -> float:
        """How many images the mean prediction of memory and a batch of `count` is of, about.

        >>> ClassMarginal(64).rests_on(16)
        16
        """
        return max(count, self.images * self._weight_with(count))

    def _fading(self, count: int) -> float:
        return math.exp(-count / self.images)

    def _weight_with(self, count: int) -> float:
        fading = self._fading(count)
        return fading * self._weight + 1 - fading

    @property
    def nbytes(self) -> int:
        """Of the mean prediction."""
        return 0 if self._mean is None else self._mean.nbytes

    def state_dict(self) -> dict[str, Any]:
        """The mean, None before the first batch, and its weight in (0, 1)."""
        return {"mean": None if self._mean is None else self._mean.clone(), "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._mean = None if state["mean"] is None else state["mean"].clone()
        self._weight = state["weight"]
