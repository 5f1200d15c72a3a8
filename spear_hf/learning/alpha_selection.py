"""AlphaSelector: whether a domain is answered with the source's statistics, the stream's, or both mixed (ours).

Which alpha is right differs between networks and between corruptions, more than anything else in Eq. 10, and on clean
images it is 0. So the first images of a domain are answered all three ways.

- The stream's alone fit better where their mean entropy is so much lower that it is not chance.
- The source's alone fit better where the answers tell more classes apart: I = H(mean of p) - mean of H(p), which is
  high where single answers are sure and all of them together are not of one class. The entropy would not do: a network
  whose statistics do not fit is often sure, of one class.

RSPs have learned with the way of the last domain, so a new one begins with it, and leaves it only where mixed
statistics are better by the same measure.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.statistics_memory import BATCH, MIXED, SOURCE, WAYS, Way

SURER = 5 / 6  # of the mean entropy with mixed statistics; chosen on held-out images (benchmarks/results/tune.md)
CLEARER = 0.005  # of log K, in I; chosen on held-out images (benchmarks/results/any_network.md)


class AlphaSelector:
    """The mean entropies and predictions of the three ways over the first images of a domain.

    Args:
        images: how many; 0 never tries.

    >>> even = torch.tensor([0.5, 0.5])
    >>> selector = AlphaSelector(256)
    >>> selector.add({"source": (0.2, even), "mixed": (0.5, even), "batch": (0.5, even)}, images=16)
    'source'
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.clear()

    def clear(self, way: Way = MIXED) -> None:
        """A new domain: try again, beginning with this way."""
        self.count = 0
        self._began: Way = way
        self._entropy: dict[Way, float] = dict.fromkeys(WAYS, 0.0)
        self._prediction: dict[Way, Tensor] = {}

    @property
    def is_open(self) -> bool:
        """Whether images are still to be tried."""
        return self.count < self.images

    def add(self, means: Mapping[Way, tuple[float, Tensor]], images: int) -> Way:
        """The way in which the domain is to be answered, after this batch.

        Args:
            means: the batch's mean normalised entropy and its mean prediction (K,) by each way.
            images: how many images the batch has, of this stream and over all processes.
        """
        self.count += images
        for way, (entropy, prediction) in means.items():
            before = self._prediction.get(way, prediction).to(prediction)
            self._entropy[way] += (entropy - self._entropy[way]) * images / self.count
            self._prediction[way] = torch.lerp(before, prediction, images / self.count)
        if self._entropy[BATCH] < (1 if self._began == BATCH else SURER) * self._entropy[MIXED]:
            return BATCH
        margin = 0 if self._began == SOURCE else CLEARER
        return SOURCE if self._information(SOURCE) > self._information(MIXED) + margin else MIXED

    def _information(self, way: Way) -> float:
        """I, as a part of log K."""
        return float(normalized_entropy(self._prediction[way].log()[None])) - self._entropy[way]

    @property
    def nbytes(self) -> int:
        """Of the mean predictions."""
        return sum(prediction.nbytes for prediction in self._prediction.values())

    def state_dict(self) -> dict[str, Any]:
        """Images so far, the way the domain began with, and the means of each way."""
        predictions = {way: self._prediction[way].clone() if way in self._prediction else None for way in WAYS}
        return {"count": self.count, "began": self._began, "entropy": dict(self._entropy), "prediction": predictions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.count, self._began = state["count"], state["began"]
        self._entropy = {way: float(state["entropy"][way]) for way in WAYS}
        self._prediction = {way: p.clone() for way in WAYS if (p := state["prediction"][way]) is not None}
