"""Noise: every value of the image is redrawn on its own."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.pixels import to_uint8
from spear_hf.data.corruptions.poisson import poisson_table


def draw_normal(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) float32, standard normal."""
    return (rng.standard_normal((height, width, 3), dtype=np.float32),)


def draw_bits(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W, 3) int32, uniform over all its values."""
    values = height * width * 3
    words = rng.integers(0, 2**64, size=(values + 1) // 2, dtype=np.uint64)  # two values each: half the time
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
    kept = (bits >= changed).view(torch.uint8)  # 0 or 1: products of bytes are many times faster than masks
    return (bits < white).view(torch.uint8).mul_(255).add_(kept.mul_(images))


def shot_noise(images: Tensor, constants: Constants, bits: Tensor) -> Tensor:
    """Poisson(x / v) v, where v is the variance of a white pixel; exact to 2**-32, see `poisson_table`."""
    (variance,) = constants
    column = bits & 255
    entry = poisson_table(variance).to(images.device).index_select(0, (images.int() << 8).add_(column).flatten())
    entry = entry.view_as(bits)
    return torch.where(bits < (entry & -256), column, entry & 255).byte()
