"""ClassSkew: whether a stream shows few classes at a time, as a camera at one shelf does; by its own answers (ours).

Deep batch norms see what is in the images. On images of one class the stream's statistics there turn right answers into
answers of all classes, and neither entropy nor diversity minds. Early batch norms see how the images were taken. So a
stream begins with its statistics in the first half of the batch norms alone, and takes them in all once neighbouring
images are answered as differently as those of a shuffled stream.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NEIGHBOURS = 32  # images before an image that it is compared with
ENOUGH = 32  # images before anything is decided
LONG = 1024  # images over which classes that come in turn are noticed
MANY, FEW = 0.2, 0.35  # at less a stream of few classes becomes one of many, at more it is the other way round
IN_TURN = 0.1  # all four were chosen on held-out images (benchmarks/results/guard.md)


class ClassSkew:
    """How much alike the answers to neighbouring images are.

    An image is as sure of its neighbours' class as of its own only if they are of one class. So
    the mean of <p_i, p_j> over neighbours is set against the mean of <p_i, p_i>; unsure answers do not look alike.

    Args:
        images: over about how many recent images, at least 1.

    Attributes:
        is_of_few: what was decided last; None before anything was.

    >>> import torch
    >>> skew = ClassSkew(64)
    >>> skew.add(torch.eye(10)[[3] * 32])
    >>> skew.alike, skew.decide()
    (1.0, True)
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.clear()

    def clear(self) -> None:
        """Forget the stream."""
        self._before: Tensor | None = None  # (<= NEIGHBOURS, K), the latest answers
        self._mean: Tensor | None = None  # (K,), over LONG images
        self._sums = torch.zeros(2, 4, dtype=torch.float64)  # over `images` and LONG: pairs alike, pairs, sure, images
        self.is_of_few: bool | None = None
        self.seen = 0

    def add(self, p: Tensor) -> None:
        """The probabilities (B, K) of a batch, in the order of its images."""
        rows = p if self._before is None else torch.cat([self._before.to(p), p])
        apart = torch.arange(len(rows) - len(p), len(rows))[:, None] - torch.arange(len(rows))
        near = (apart > 0) & (apart <= NEIGHBOURS)
        alike, sure = torch.stack([(p @ rows.T * near.to(p)).sum(), p.square().sum()]).tolist()
        if not math.isfinite(alike):
            return
        new = torch.tensor([alike, int(near.sum()), sure, len(p)], dtype=torch.float64)
        fading = torch.tensor([[math.exp(-len(p) / images)] for images in (self.images, LONG)], dtype=torch.float64)
        share = len(p) / float(fading[1] * self._sums[1, 3] + len(p))
        self._sums = fading * self._sums + new
        self._mean = p.mean(0) if self._mean is None else torch.lerp(self._mean.to(p), p.mean(0), share)
        self._before, self.seen = rows[-NEIGHBOURS:].clone(), self.seen + len(p)

    @property
    def alike(self) -> float:
        """0 where neighbours are as those of a shuffled stream of equally frequent classes, 1 where all are of one."""
        near, sure = self._near_and_sure(0)
        return 0.0 if self._mean is None else _part(near, sure, 1 / len(self._mean))

    @property
    def in_turn(self) -> float:
        """0 where neighbours are as any two images of the stream, 1 where classes come one after the other."""
        near, sure = self._near_and_sure(1)
        return 0.0 if self._mean is None else _part(near, sure, float(self._mean.square().sum()))

    def _near_and_sure(self, row: int) -> tuple[float, float]:
        alike, pairs, sure, images = self._sums[row].tolist()
        return alike / max(pairs, 1.0), sure / max(images, 1e-9)

    @property
    def nbytes(self) -> int:
        """What it takes, in bytes: the latest NEIGHBOURS answers, and their mean."""
        return self._sums.nbytes + sum(t.nbytes for t in (self._before, self._mean) if t is not None)

    @property
    def is_known(self) -> bool:
        """Whether enough images were seen to decide."""
        return self.seen >= ENOUGH

    def decide(self) -> bool:
        """Whether the stream shows few classes at a time; what was decided last stays where that is not clear."""
        if self.is_known:
            self.is_of_few = self.alike > (FEW if self.is_of_few is False else MANY) or self.in_turn > IN_TURN
        return self.is_of_few is not False

    def state_dict(self) -> dict[str, Any]:
        """The sums and the latest answers."""
        kept = {"before": self._before, "mean": self._mean, "sums": self._sums}
        decided = {"seen": self.seen, "is_of_few": self.is_of_few}
        return decided | {name: None if t is None else t.clone() for name, t in kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.seen, self.is_of_few, self._sums = int(state["seen"]), state["is_of_few"], state["sums"].clone()
        self._before, self._mean = (None if state[n] is None else state[n].clone() for n in ("before", "mean"))


def _part(near: float, sure: float, chance: float) -> float:
    """Of the way from chance to what an image's answer has in common with itself."""
    return (near - chance) / max(sure - chance, 0.02)
