"""Poisson-distributed grey levels from uniform bits, by the alias method: one look-up and one comparison each."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

MOST_PHOTONS = 2.0**16  # of a white pixel; beyond, the noise is below one grey level


@lru_cache(maxsize=16)
def poisson_table(variance: float) -> Tensor:
    """For each pixel value, an alias table of its grey levels after shot noise.

    Bits u (int32) fall in column u & 255 of their pixel value. The column's entry holds a bound in its upper 24 bits
    and a level in its lower 8: below the bound the result is the column's own level, else the entry's.

    Args:
        variance: of a white pixel, where white is 1.

    Returns:
        (256 * 256,) int32, by pixel value and column.
    """
    return torch.from_numpy(np.concatenate([alias_row(row) for row in level_probabilities(variance)]))


def level_probabilities(variance: float) -> np.ndarray:
    """(256, 256) float64: for each pixel value x, the probability of each level floor(255 min(Poisson(x / v) v, 1))."""
    photons = min(1 / variance, MOST_PHOTONS)
    counts = np.arange(int(np.ceil(photons)) + 1)
    levels = (np.minimum(counts / photons, 1) * 255).astype(np.uint8)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    table = np.zeros((256, 256))
    table[0, 0] = 1  # black has no photons
    for pixel in range(1, 256):
        rate = photons * pixel / 255
        probability = np.exp(counts * np.log(rate) - rate - log_factorial)
        table[pixel] = np.bincount(levels, probability, minlength=256)
        table[pixel, 255] += max(0.0, 1 - probability.sum())  # more photons than white
    return table / table.sum(1, keepdims=True)


def alias_row(probability: np.ndarray) -> np.ndarray:
    """(256,) int32 entries whose columns, of equal chance, together give each level its probability.

    Columns with less than their share are topped up, one after the other, by levels with more than theirs.
    """
    columns = len(probability)
    own = (probability * columns).tolist()  # what is left of each level, in columns; lists, for 65,536 small steps
    alias = list(range(columns))
    poor = [level for level in range(columns) if own[level] < 1]
    rich = [level for level in range(columns) if own[level] >= 1]
    while poor and rich:
        column, giver = poor.pop(), rich[-1]
        alias[column] = giver
        own[giver] -= 1 - own[column]
        if own[giver] < 1:
            poor.append(rich.pop())
    whole = np.array(alias) == np.arange(columns)
    bounds = np.round(np.where(whole, 1, own) * 2**24).astype(np.int64) - 2**23
    return ((bounds.clip(max=2**23 - 1) << 8) | alias).astype(np.int32)
