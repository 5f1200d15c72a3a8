"""Blurs without randomness: Gaussian and zoom."""

import numpy as np
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
    planes = images.permute(0, 3, 1, 2).float()
    total = planes * (1 + len(factors[:1]))  # the first factor is 1
    for factor in factors[1:]:
        total += clipped_zoom(planes, float(factor))
    return to_uint8(total.div_(len(factors) + 1)).permute(0, 2, 3, 1).contiguous()


def clipped_zoom(planes: Tensor, factor: float) -> Tensor:
    """The centre of (B, C, H, W), enlarged by `factor` to the same size: corners onto corners, bilinear, trimmed."""
    _, _, height, width = planes.shape
    kept = [int(np.ceil(side / factor)) for side in (height, width)]
    grown = [round(side * factor) for side in kept]
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    crop = planes[:, :, top : top + kept[0], left : left + kept[1]]
    zoomed = functional.interpolate(crop, size=grown, mode="bilinear", align_corners=True)
    top, left = (grown[0] - height) // 2, (grown[1] - width) // 2
    return zoomed[:, :, top : top + height, left : left + width]
