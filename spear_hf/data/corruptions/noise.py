"""Noise: every value of an image gets its own random change."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import to_uint8

MOST_PHOTONS = 2.0**16  # of a white pixel; with more photons, the noise is below one grey level


def draw_normal(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) float32, standard normal.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.noise import draw_normal
    >>> draw_normal(np.random.default_rng(0), 4, 5, (0.1,))[0].shape
    (4, 5, 3)
    """
    return (rng.standard_normal((height, width, 3), dtype=np.float32),)


def draw_bits(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) int32, uniform over all values of int32.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.noise import draw_bits
    >>> draw_bits(np.random.default_rng(0), 4, 5, (0.1,))[0].shape
    (4, 5, 3)
    """
    values = height * width * 3
    # one 64-bit word gives two values, in half the time of two draws
    words = rng.integers(0, 2**64, size=(values + 1) // 2, dtype=np.uint64)
    return (words.astype("<u8", copy=False).view("<i4")[:values].reshape(height, width, 3),)


def gaussian_noise(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """x + sigma n, with n standard normal.

    >>> import torch
    >>> from spear_hf.data.corruptions.noise import gaussian_noise
    >>> grey = torch.full((1, 1, 1, 3), 100, dtype=torch.uint8)
    >>> gaussian_noise(grey, (0.1,), torch.tensor([[[[-1.0, 0.0, 2.0]]]])).tolist()
    [[[[74, 100, 151]]]]
    """
    (sigma,) = constants
    return to_uint8(images.float().add_(normal, alpha=255 * sigma))


def speckle_noise(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """x + sigma x n, with n standard normal.

    >>> import torch
    >>> from spear_hf.data.corruptions.noise import speckle_noise
    >>> grey = torch.full((1, 1, 1, 3), 100, dtype=torch.uint8)
    >>> speckle_noise(grey, (0.5,), torch.tensor([[[[-1.0, 0.0, 2.0]]]])).tolist()
    [[[[50, 100, 200]]]]
    """
    (sigma,) = constants
    levels = images.float()
    return to_uint8(levels.addcmul_(levels, normal, value=sigma))


def impulse_noise(images: Tensor, constants: Constants, bits: Tensor) -> Tensor:
    """Images in which a share `amount` of the values is black or white, with equal probability.

    >>> import torch
    >>> from spear_hf.data.corruptions.noise import impulse_noise
    >>> grey = torch.full((1, 1, 1, 3), 100, dtype=torch.uint8)
    >>> impulse_noise(grey, (0.5,), torch.tensor([[[[-2**31, -(2**29), 2**30]]]])).tolist()
    [[[[255, 0, 100]]]]
    """
    (amount,) = constants
    changed, white = (int(share * 2**32) - 2**31 for share in (amount, amount / 2))
    kept = (bits >= changed).view(torch.uint8)  # 0 or 1: a product of bytes is many times faster than a mask
    return (bits < white).view(torch.uint8).mul_(255).add_(kept.mul_(images))


def shot_noise(images: Tensor, constants: Constants, bits: Tensor) -> Tensor:
    """Poisson(x / v) v, where v is the variance of a white pixel; exact to 2**-32, see `poisson_table`.

    >>> import torch
    >>> from spear_hf.data.corruptions.noise import shot_noise
    >>> black = torch.zeros(1, 1, 2, 3, dtype=torch.uint8)
    >>> shot_noise(black, (1 / 3,), torch.zeros(1, 1, 2, 3, dtype=torch.int32)).max()
    tensor(0, dtype=torch.uint8)
    """
    (variance,) = constants
    column = bits & 255
    entry = poisson_table(variance).to(images.device).index_select(0, (images.int() << 8).add_(column).flatten())
    entry = entry.view_as(bits)
    return torch.where(bits < (entry & -256), column, entry & 255).byte()


@lru_cache(maxsize=16)
def poisson_table(variance: float) -> Tensor:
    """(256 * 256,) int32, by pixel value and column: an alias table of the grey levels after shot noise.

    The alias method draws from any distribution with one look-up and one comparison. Random bits u (int32) select
    column u & 255 of their pixel value. The entry of the column holds a bound in its upper 24 bits and a level in its
    lower 8. If u is below the bound, the result is the number of the column, otherwise the level of the entry.

    >>> from spear_hf.data.corruptions.noise import poisson_table
    >>> poisson_table(1 / 3).shape
    torch.Size([65536])

    Args:
        variance: of a white pixel, where white is 1.
    """
    return torch.from_numpy(np.concatenate([_alias_row(row) for row in level_probabilities(variance)]))


def level_probabilities(variance: float) -> np.ndarray:
    """(256, 256) float64: for each pixel value x, the probability of each level floor(255 min(Poisson(x / v) v, 1)).

    >>> from spear_hf.data.corruptions.noise import level_probabilities
    >>> table = level_probabilities(1 / 3)
    >>> table.shape, float(table[0, 0]), int((table[255] > 0).sum())
    ((256, 256), 1.0, 4)
    """
    photons = min(1 / variance, MOST_PHOTONS)
    counts = np.arange(int(np.ceil(photons)) + 1)
    levels = (np.minimum(counts / photons, 1) * 255).astype(np.uint8)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    table = np.zeros((256, 256))
    table[0, 0] = 1  # a black pixel has no photons
    for pixel in range(1, 256):
        rate = photons * pixel / 255
        probability = np.exp(counts * np.log(rate) - rate - log_factorial)
        table[pixel] = np.bincount(levels, probability, minlength=256)
        table[pixel, 255] += max(0.0, 1 - probability.sum())  # more photons than white
    return table / table.sum(1, keepdims=True)


def _alias_row(probability: np.ndarray) -> np.ndarray:
    """(256,) int32 entries: 256 equally probable columns that together give each level its probability.

    A level with less than one column's share leaves a gap in its column; a level with more than one fills the gap.
    """
    columns = len(probability)
    own = (probability * columns).tolist()  # what is left of each level, in columns; lists are faster for small steps
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
