"""Motion blur as ImageMagick 6 computes it."""

import math

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import pad_axis


def draw_angle(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """() float64, degrees in [-45, 45)."""
    return (rng.uniform(-45, 45, size=()),)


def motion_blur(images: Tensor, constants: Constants, angle: Tensor) -> Tensor:
    """The image blurred along a line through each pixel, to one side.

    Args:
        angle: (B,) degrees.
    """
    radius, sigma = constants
    blurred = [motion_filter(image.float(), radius, sigma, a) for image, a in zip(images, angle.tolist(), strict=True)]
    return torch.stack(blurred)


def motion_weights(radius: float, sigma: float) -> list[float]:
    """w_i proportional to exp(-i^2 / 2 sigma^2), i = 0..2 ceil(radius), of sum one."""
    if sigma == 0:
        return [1.0]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * math.ceil(radius) + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def motion_offsets(taps: int, angle: float) -> list[tuple[int, int]]:
    """(dy, dx) of each tap: i steps along `angle` degrees, rounded half down."""
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    return [(math.ceil(i * sine - 0.5), math.ceil(i * cosine - 0.5)) for i in range(taps)]


def motion_filter(image: Tensor, radius: float, sigma: float, angle: float) -> Tensor:
    """out(p) = floor(sum_i w_i in(p + offset_i) + 1/514), the border pixels standing for all beyond.

    ImageMagick computes in 16 bits, where level v is 257 v, and drops the lower byte: it floors but for 1/514.

    Args:
        image: (H, W, C) float, grey levels.

    Returns:
        (H, W, C) uint8.
    """
    weights = motion_weights(radius, sigma)
    offsets = motion_offsets(len(weights), angle)
    height, width, _ = image.shape
    reach_y, reach_x = (max(abs(offset[axis]) for offset in offsets) for axis in (0, 1))
    padded = pad_axis(pad_axis(image, 0, reach_y, "nearest"), 1, reach_x, "nearest")
    levels = torch.full_like(image, 1 / 514)
    for weight, (dy, dx) in zip(weights, offsets, strict=True):
        top, left = reach_y + dy, reach_x + dx
        levels.add_(padded[top : top + height, left : left + width], alpha=weight)
    return levels.clamp_(0, 255).byte()
