"""Motion blur as ImageMagick 6 computes it."""

import math

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import pad_axis
from spear_hf.data.corruptions.pixels import to_uint8


def draw_angle(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """() float64, degrees in [-45, 45)."""
    return (rng.uniform(-45, 45, size=()),)


def motion_blur(images: Tensor, constants: Constants, angle: Tensor) -> Tensor:
    """Each image blurred along its own line through every pixel, to one side."""
    radius, sigma = constants
    return motion_filter(images.float(), radius, sigma, angle)


def motion_weights(radius: float, sigma: float) -> list[float]:
    """w_i ~ exp(-i^2 / 2 sigma^2), i = 0..2 ceil(radius), of sum one."""
    if sigma == 0:
        return [1.0]
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * math.ceil(radius) + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def motion_offsets(taps: int, angle: float) -> list[tuple[int, int]]:
    """(dy, dx) of each tap: i steps along `angle` degrees, halves rounded down."""
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    return [(math.ceil(i * sine - 0.5), math.ceil(i * cosine - 0.5)) for i in range(taps)]


def motion_filter(images: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """out(p) = floor(sum_i w_i in(p + offset_i) + 1/514), the border pixels standing for all beyond.

    ImageMagick computes in 16 bits, where level v is 257 v, and drops the lower byte: it floors but for 1/514.

    Args:
        images: (B, H, W, C) float, grey levels.
        angle: (B,) degrees.

    Returns:
        (B, H, W, C) uint8.
    """
    weights = motion_weights(radius, sigma)
    offsets = [motion_offsets(len(weights), degrees) for degrees in angle.tolist()]
    reach_y, reach_x = (max(abs(one[axis]) for line in offsets for one in line) for axis in (0, 1))
    padded = pad_axis(pad_axis(images, 1, reach_y, "nearest"), 2, reach_x, "nearest")
    _, height, width, _ = images.shape
    levels = torch.full_like(images, 1 / 514)
    for image, result, line in zip(padded, levels, offsets, strict=True):
        for weight, (dy, dx) in zip(weights, line, strict=True):
            top, left = reach_y + dy, reach_x + dx
            result.add_(image[top : top + height, left : left + width], alpha=weight)
    return to_uint8(levels)
