"""Noise: every value of the image is redrawn on its own."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.pixels import to_uint8

GUIDE_BITS = 12  # the top bits of a uniform that the table of guesses is indexed by
MOST_PHOTONS = 2.0**16  # of a white pixel; beyond, the noise is below one grey level


def draw_normal(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) float32, standard normal."""
    return (rng.standard_normal((height, width, 3), dtype=np.float32),)


def draw_bits(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) uint32, uniform over all values, kept in int32 (torch computes little in uint32)."""
    values = height * width * 3
    words = rng.integers(0, 2**64, size=(values + 1) // 2, dtype=np.uint64)  # half the calls of 32-bit draws
    return (words.astype("<u8", copy=False).view("<i4")[:values].reshape(height, width, 3),)


def gaussian_noise(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """x + sigma n, with n standard normal."""
    (sigma,) = constants
    return to_uint8(images.float().add_(normal, alpha=255 * sigma))


def speckle_noise(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """x + sigma x n, with n standard normal."""
    (sigma,) = constants
    levels = images.float()
    return to_uint8(levels.addcmul_(levels, normal, value=sigma))


def impulse_noise(images: Tensor, constants: Constants, bits: Tensor) -> Tensor:
    """A share `amount` of the values turns black or white, each with half the chance."""
    (amount,) = constants
    changed, white = (int(share * 2**32) - 2**31 for share in (amount, amount / 2))
    return images.masked_fill(bits < changed, 0).masked_fill_(bits < white, 255)


def shot_noise(images: Tensor, constants: Constants, bits: Tensor) -> Tensor:
    """Poisson(x / v) v, where v is the variance of a white pixel, as the inverse of its distribution at a uniform.

    The top bits of the uniform look the grey level up; the few cells of that table that hold two levels or more are
    settled with all 32 bits, so the distribution is exact to 2**-32.
    """
    (variance,) = constants
    guess, bounds = shot_tables(variance)
    guess, bounds = guess.to(images.device), bounds.to(images.device)
    pixel, uniform = images.flatten().int(), bits.flatten()
    cell = (pixel << GUIDE_BITS) + (uniform >> (32 - GUIDE_BITS)) + 2 ** (GUIDE_BITS - 1)
    level = guess[cell]
    unsettled = (level < 0).nonzero().squeeze(1)
    exact = uniform[unsettled].clamp_(max=2**31 - 2).unsqueeze(1)  # the last bound stands for probability one
    level[unsettled] = torch.searchsorted(bounds[pixel[unsettled]], exact, right=True).squeeze(1).to(level.dtype)
    return level.view(images.shape).byte()


@lru_cache(maxsize=16)
def shot_tables(variance: float) -> tuple[Tensor, Tensor]:
    """For every pixel value: the grey level by the top bits of a uniform, and the exact steps between grey levels.

    Returns:
        (256 * 2**GUIDE_BITS,) int16, the level or -1 where the cell holds several; (256, 255) int32, where the
        distribution passes from level g to g + 1, as a uniform over [-2**31, 2**31).
    """
    photons = min(1 / variance, MOST_PHOTONS)
    counts = np.arange(int(np.ceil(photons)) + 1)
    levels = (np.minimum(counts / photons, 1) * 255).astype(np.uint8)
    last = np.searchsorted(levels, np.arange(255), side="right") - 1  # the last count that gives level g or less
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    starts = (np.arange(2**GUIDE_BITS) << (32 - GUIDE_BITS)) - 2**31
    ends = starts + 2 ** (32 - GUIDE_BITS) - 1
    guess, bounds = np.zeros((256, 2**GUIDE_BITS), dtype=np.int16), np.full((256, 255), 2**31 - 1, dtype=np.int32)
    for pixel in range(1, 256):  # black has no photons: level 0 always
        rate = photons * pixel / 255
        cumulative = np.cumsum(np.exp(counts * np.log(rate) - rate - log_factorial))[last]
        bounds[pixel] = np.minimum(np.round(cumulative * 2**32) - 2**31, 2**31 - 1)
        low, high = (np.searchsorted(bounds[pixel], edge, side="right") for edge in (starts, ends))
        guess[pixel] = np.where(low == high, low, -1)
    return torch.from_numpy(guess.ravel()), torch.from_numpy(bounds)
