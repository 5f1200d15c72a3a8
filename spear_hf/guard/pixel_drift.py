"""PixelDriftDetector: finds a change of domain in the pixels of the batches; and pixels that are not finite."""

import math
from typing import Any

import torch
from torch import Tensor

from spear_hf.utils.distributed import BatchShard

WARM_UP = 8  # batches before the usual spread between batches is known
MOMENTUM = 15 / 16  # of the running statistics, for each batch
SIDE = 32  # rows and columns of an image that are sampled
MIN_DEVIATION = 0.05  # between batches, in normalized pixels: equal batches have a spread of 0


class PixelDriftDetector:
    """Compares each channel's mean and standard deviation over a batch with their running mean and spread.

    Args:
        threshold: if one of them jumps by more than this many of its standard deviations, the domain has changed, and
            the running statistics start anew.

    >>> import torch
    >>> from spear_hf.guard.pixel_drift import PixelDriftDetector
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> detector, shard = PixelDriftDetector(threshold=6.0), ProcessGroup().shard(4)
    >>> sunny = torch.rand(4, 3, 8, 8)
    >>> [detector.jump(sunny, shard) for _ in range(8)] == [0.0] * 8, detector.jump(sunny + 2, shard) > 6
    (True, True)
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.clear()

    def clear(self) -> None:
        """Forget the running statistics."""
        self.batches = 0
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None

    @torch.no_grad()  # images may require grad; the running statistics must not hold their graph
    def jump(self, x: Tensor, shard: BatchShard) -> float:
        """By how many standard deviations the batch (B, C, ...) jumped if the domain has changed, else 0."""
        now = channel_statistics(x, shard)
        if not bool(torch.isfinite(now).all()):  # huge pixels have infinite squares, which would stay in the averages
            return 0.0
        if self.mean is None or self.variance is None:
            self._start(now)
            return 0.0
        difference = now - self.mean
        jump = float((difference.abs() / self.variance.sqrt().clamp_min(MIN_DEVIATION)).max())
        if self.batches >= WARM_UP and jump > self.threshold:
            self._start(now)
            return jump
        keep = min(MOMENTUM, self.batches / (self.batches + 1))
        self.variance = keep * (self.variance + (1 - keep) * difference.square())
        self.mean = self.mean + (1 - keep) * difference
        self.batches += 1
        return 0.0

    def _start(self, now: Tensor) -> None:
        self.batches, self.mean, self.variance = 1, now, torch.zeros_like(now)

    def state_dict(self) -> dict[str, Any]:
        """The running statistics."""
        return {"batches": self.batches, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.batches, self.mean, self.variance = state["batches"], state["mean"], state["variance"]


def channel_statistics(x: Tensor, shard: BatchShard) -> Tensor:
    """(2C,) fp32 on the CPU: mean, then standard deviation, of each channel over the global batch (B, C, ...).

    Large images are sampled at every n-th row and column, about SIDE of each.

    >>> import torch
    >>> from spear_hf.guard.pixel_drift import channel_statistics
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> channel_statistics(torch.ones(2, 3, 4, 4), ProcessGroup().shard(2)).tolist()
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """
    steps = [slice(None, None, max(1, side // SIDE)) for side in x.shape[2:]]
    wide = x[(slice(shard.local), slice(None), *steps)].float()
    over = [d for d in range(wide.dim()) if d != 1]
    sums = shard.sum(torch.cat([wide.sum(over), wide.square().sum(over)]))
    mean, square = (sums / (shard.total * math.prod(wide.shape[2:]))).cpu().chunk(2)
    return torch.cat([mean, (square - mean.square()).clamp_min(0).sqrt()])


def replace_non_finite(x: Tensor) -> tuple[Tensor, list[int]]:
    """x with 0 for NaN and infinity, and the rows that held any. Anything but a batch of floats comes back as it is.

    >>> import torch
    >>> from spear_hf.guard.pixel_drift import replace_non_finite
    >>> replace_non_finite(torch.tensor([[1.0, 2.0], [3.0, torch.nan]]))
    (tensor([[1., 2.],
            [3., 0.]]), [1])
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        return x, []
    if bool(torch.isfinite(x.sum(dtype=torch.float32))):  # a sum is cheap, and shows any NaN or infinity
        return x, []
    bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
    return (x.nan_to_num(0.0, 0.0, 0.0) if bad else x), bad
