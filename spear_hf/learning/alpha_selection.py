"""AlphaSelector: whether a domain is answered with the batch's statistics alone, or mixed with the source's (ours).

Which alpha is right differs between networks and between corruptions, more than anything else in Eq. 10. Answers are
surer where statistics fit; so the first images of a domain are answered both ways, and the whole batch's statistics are
taken where the mean entropy is so much lower that it is not chance. RSPs have learned with the way of the last domain,
so a new one begins with it, and leaves whole statistics only where the mixed ones are surer.
"""

from collections.abc import Mapping
from typing import Any

SURER = 5 / 6  # of the mean entropy with mixed statistics; chosen on held-out images (benchmarks/results/tune.md)


class AlphaSelector:
    """The mean entropies of both ways over the first images of a domain.

    Args:
        images: how many; 0 never tries.
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.clear()

    def clear(self, whole: bool = False) -> None:
        """A new domain: try again, beginning with whole statistics or mixed ones."""
        self.count = 0
        self._began_whole = whole
        self._entropy = {False: 0.0, True: 0.0}

    @property
    def is_open(self) -> bool:
        """Whether images are still to be tried."""
        return self.count < self.images

    def add(self, entropies: Mapping[bool, float], images: int) -> bool:
        """Whether the domain is to be answered with whole statistics, after this batch.

        Args:
            entropies: the batch's mean normalised entropy with mixed (False) and with whole statistics (True).
            images: how many images the batch has, of this stream and over all processes.
        """
        for whole, entropy in entropies.items():
            self._entropy[whole] += entropy * images
        self.count += images
        return self._entropy[True] < (1 if self._began_whole else SURER) * self._entropy[False]

    def state_dict(self) -> dict[str, Any]:
        """Images so far, the way the domain began with, and the sums of both entropies."""
        entropies = {"mixed": self._entropy[False], "whole": self._entropy[True]}
        return {"count": self.count, "began_whole": self._began_whole, **entropies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.count, self._began_whole = state["count"], state["began_whole"]
        self._entropy = {False: state["mixed"], True: state["whole"]}
