"""Blurs without randomness: Gaussian and zoom."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8


def draw_nothing(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[()]:
    """A corruption without randomness."""
    return ()


def gaussian_blur(images: Tensor, constants: Constants) -> Tensor:
    """Gaussian smoothing with `sigma` pixels."""
    (sigma,) = constants
    return to_uint8(gaussian_filter(images.float(), sigma))


def zoom_blur(images: Tensor, constants: Constants) -> Tensor:
    """The mean of the image and its enlargements by np.arange(1, stop, step), the image itself counted once more."""
    factors = np.arange(1, *constants)  # its float steps include the end at some severities, as published
    planes = images.permute(0, 3, 1, 2).float().contiguous()
    total = planes * (1 + len(factors[:1]))  # the first factor is 1
    for factor in factors[1:]:
        total += clipped_zoom(planes, float(factor))
    return to_uint8(total.div_(len(factors) + 1)).permute(0, 2, 3, 1).contiguous()


def clipped_zoom(planes: Tensor, factor: float) -> Tensor:
    """The centre of (B, C, H, W), enlarged by `factor` to the same size: corners onto corners, bilinear, trimmed."""
    b, _, height, width = planes.shape
    grid = zoom_grid(height, width, factor, planes.dtype).to(planes.device).expand(b, height, width, 2)
    # not functional.interpolate, whose last bits depend on the number of threads
    return functional.grid_sample(planes, grid, "bilinear", "border", align_corners=True)


@lru_cache(maxsize=64)
def zoom_grid(height: int, width: int, factor: float, dtype: torch.dtype) -> Tensor:
    """(H, W, 2): the (x, y) that each pixel of an enlarged image comes from, in [-1, 1] from edge to edge."""
    x, y = (torch.from_numpy(zoom_places(size, factor) * (2 / (size - 1)) - 1) for size in (width, height))
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)], 2).to(dtype)


def zoom_places(size: int, factor: float) -> np.ndarray:
    """(size,) float64: the pixel that each pixel of an enlarged and trimmed axis comes from."""
    kept = int(np.ceil(size / factor))
    grown = round(kept * factor)
    return (np.arange(size) + (grown - size) // 2) * ((kept - 1) / (grown - 1)) + (size - kept) // 2
