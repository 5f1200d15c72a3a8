"""Whether the pixels of a batch are of another domain than those of the batches before it."""

import math
from typing import Any

import torch
from torch import Tensor

from spear_hf.utils.distributed import BatchShard

WARM = 8  # batches before a jump can be told from the usual spread
KEEP = 15 / 16  # of the running figures, at each batch
SIDE = 32  # rows and columns of an image that are looked at
FLOOR = 0.05  # the least deviation between batches, in units of normalised pixels: equal batches have none


class Pixels:
    """Mean and deviation of each channel over a batch, against their own running mean and spread.

    Args:
        threshold: a jump of any of them by more of its standard deviations is a change of domain, after which the
            running figures start anew.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.batches = 0
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None

    def jump(self, x: Tensor, shard: BatchShard) -> float:
        """By how many standard deviations this batch jumped, where that is a change of domain; else 0."""
        now = channel_statistics(x, shard)
        if not bool(torch.isfinite(now).all()):  # the squares of huge pixels; they must not stay in the averages
            return 0.0
        if self.mean is None or self.variance is None:
            self._start(now)
            return 0.0
        difference = now - self.mean
        jump = float((difference.abs() / self.variance.sqrt().clamp_min(FLOOR)).max())
        if self.batches >= WARM and jump > self.threshold:
            self._start(now)
            return jump
        keep = min(KEEP, self.batches / (self.batches + 1))
        self.variance = keep * (self.variance + (1 - keep) * difference.square())
        self.mean = self.mean + (1 - keep) * difference
        self.batches += 1
        return 0.0

    def _start(self, now: Tensor) -> None:
        self.batches, self.mean, self.variance = 1, now, torch.zeros_like(now)

    def state_dict(self) -> dict[str, Any]:
        """The running figures."""
        return {"batches": self.batches, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.batches, self.mean, self.variance = state["batches"], state["mean"], state["variance"]


def channel_statistics(x: Tensor, shard: BatchShard) -> Tensor:
    """(2C,) fp32 on the CPU: mean and standard deviation of each channel over the global batch (B, C, ...).

    Of large images every n-th row and column are enough, about SIDE of each.
    """
    steps = [slice(None, None, max(1, side // SIDE)) for side in x.shape[2:]]
    wide = x[(slice(shard.local), slice(None), *steps)].float()
    over = [d for d in range(wide.dim()) if d != 1]
    sums = shard.sum(torch.cat([wide.sum(over), wide.square().sum(over)]))
    mean, square = (sums / (shard.total * math.prod(wide.shape[2:]))).cpu().chunk(2)
    return torch.cat([mean, (square - mean.square()).clamp_min(0).sqrt()])


def repaired(x: Tensor) -> tuple[Tensor, list[int]]:
    """x with 0 for NaN and infinity, and the rows that held any; anything but a batch of floats comes back as it is."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        return x, []
    if bool(torch.isfinite(x.sum(dtype=torch.float32))):  # any NaN or infinity shows in the sum; the rest is for few
        return x, []
    bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
    return (x.nan_to_num(0.0, 0.0, 0.0) if bad else x), bad
