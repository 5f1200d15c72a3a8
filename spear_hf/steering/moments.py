"""Mean and variance of each channel of a batch: one cheap pass on the CPU, one small collective over processes."""

import torch
from torch import Tensor

from spear_hf.utils.distributed import BatchShard

FEW_VALUES = 25_000  # up to which one slow call takes less time than eight fast ones
STEEP = 16.0  # mean^2 / variance beyond which E[x^2] - mean^2 loses more than two digits of fp32


@torch.no_grad()
def batch_statistics(
    x: Tensor, shard: BatchShard | None = None, around: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """Mean and biased variance of (B, C, ...) over everything but the channels, in fp32 (or fp64).

    Args:
        x: (B, C, ...).
        share: the global batch that x is a slice of; None where x is all of it. A process without images contributes
            nothing, whatever its x holds.
        around: (C,), anything near the mean: sums of processes are taken around it, so that they keep their digits.

    Returns:
        (C,), (C,); None where each channel holds a single value, whose variance says nothing.
    """
    channels, alone = x.shape[1], shard is None or len(shard.sizes) == 1
    count = x.numel() // channels
    if shard is not None and not alone:
        count = count // len(x) * shard.total
    if count <= 1:
        return None
    mean, variance = _moments(x if x.dtype == torch.float64 else x.float())
    if shard is None or alone:
        return mean, variance
    return _combined(mean, variance, shard, mean.new_zeros(channels) if around is None else around.to(mean.dtype))


def _combined(mean: Tensor, variance: Tensor, shard: BatchShard, around: Tensor) -> tuple[Tensor, Tensor]:
    """The moments of the union of all slices, images weighted equally; one collective of 2 C numbers."""
    shift = mean - around
    mine = torch.cat([shift, variance + shift.square()]) * (shard.local / shard.total)
    # not by multiplying with a weight of zero: a process without images may hold anything, NaN too
    mean, square = shard.sum(mine if shard.local else torch.zeros_like(mine)).chunk(2)
    return around + mean, (square - mean.square()).clamp_min(0)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """(C,), (C,) of this process's x; what is fastest for its layout (measured: benchmarks/step.py)."""
    if x.device.type != "cpu" or x.dim() == 2 or torch.compiler.is_compiling():
        variance, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
        return mean, variance
    if x.numel() <= FEW_VALUES or not x.is_contiguous():  # or channels_last
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    rows = x.flatten(2)
    count = rows.shape[0] * rows.shape[2]
    mean = rows.sum(2).sum(0) / count
    variance = torch.linalg.vector_norm(rows, dim=2).square().sum(0) / count - mean.square()
    steep = (mean.square() > STEEP * variance).nonzero().flatten()
    if len(steep):
        variance[steep], mean[steep] = torch.var_mean(rows[:, steep], (0, 2), correction=0)
    return mean, variance


@torch.no_grad()
def grouped_statistics(x: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of the channels of each group of images, in fp32 (or fp64).

    Args:
        x: (B, C, ...).
        index: (B,), the group of each image, in 0..count-1; every group has an image.
        count: S, the number of groups.

    Returns:
        (S, C), (S, C).

    >>> import torch
    >>> mean, _ = grouped_statistics(torch.tensor([[[1.0]], [[2.0]], [[4.0]]]), torch.tensor([0, 1, 1]), 2)
    >>> mean.flatten().tolist()
    [1.0, 3.0]
    """
    index = index.to(x.device)
    wide = x if x.dtype == torch.float64 else x.float()
    mean, variance = _image_moments(wide.flatten(2) if x.dim() > 2 else wide.unsqueeze(2))
    ones = mean.new_ones(len(index))
    images = mean.new_zeros(count).index_add_(0, index, ones)[:, None]  # no bincount: a compiler cannot take it
    shape = (count, x.shape[1])
    center = mean.new_zeros(shape).index_add_(0, index, mean) / images
    # the variance of a union of equal parts: the mean of theirs, and the variance of their means
    spread = variance + (mean - center.index_select(0, index)).square()
    return center, mean.new_zeros(shape).index_add_(0, index, spread) / images


def _image_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C), (B, C) of (B, C, N); on a CPU by two sums, which take a third of the time of var_mean."""
    count = rows.shape[2]
    if rows.device.type != "cpu" or count == 1 or torch.compiler.is_compiling():
        variance, mean = torch.var_mean(rows, 2, correction=0)
        return mean, variance
    mean = rows.sum(2) / count
    variance = torch.linalg.vector_norm(rows, dim=2).square() / count - mean.square()
    steep = mean.square() > STEEP * variance
    if bool(steep.any()):
        variance[steep], mean[steep] = torch.var_mean(rows[steep], 1, correction=0)
    return mean, variance
