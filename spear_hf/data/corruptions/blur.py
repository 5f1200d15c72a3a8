"""Blurs without randomness: Gaussian, defocus and zoom."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, pad_axis
from spear_hf.data.corruptions.pixels import to_uint8

FEW_TAPS = 40  # below this many non-zero taps, adding shifted images beats the Fourier transform


def draw_nothing(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[()]:
    """A corruption without randomness."""
    return ()


def gaussian_blur(images: Tensor, constants: Constants) -> Tensor:
    """Gaussian smoothing with `sigma` pixels."""
    (sigma,) = constants
    return to_uint8(gaussian_filter(images.float(), sigma))


def defocus_blur(images: Tensor, constants: Constants) -> Tensor:
    """The image of every point is a disk with a softened edge."""
    radius, softening = constants
    kernel = disk(radius, softening)
    taps = [(int(y), int(x)) for y, x in kernel.nonzero()]
    if len(taps) > FEW_TAPS:
        return defocus_by_fourier(images, kernel)
    reach = len(kernel) // 2
    padded = pad_axis(pad_axis(images.float(), 1, reach, "mirror"), 2, reach, "mirror")
    _, height, width, _ = images.shape
    levels = torch.zeros_like(images, dtype=torch.float32)
    for y, x in taps:
        levels.add_(padded[:, y : y + height, x : x + width], alpha=float(kernel[y, x]))
    return to_uint8(levels)


def defocus_by_fourier(images: Tensor, kernel: Tensor) -> Tensor:
    """Circular correlation with a symmetric kernel on a mirrored image that is large enough not to wrap around."""
    _, height, width, _ = images.shape
    reach = len(kernel) // 2
    padded = pad_axis(pad_axis(images.float(), 1, reach, "mirror"), 2, reach, "mirror")
    size = fast_size(height + 2 * reach), fast_size(width + 2 * reach)
    spectrum = torch.fft.rfft2(padded.permute(0, 3, 1, 2), s=size)
    response = torch.fft.rfft2(kernel.to(images.device), s=size)
    levels = torch.fft.irfft2(spectrum * response, s=size)
    return to_uint8(levels[:, :, 2 * reach :, 2 * reach :][:, :, :height, :width].permute(0, 2, 3, 1).contiguous())


def fast_size(size: int) -> int:
    """The next length with no prime factor above 5: what Fourier transforms like."""
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


@lru_cache(maxsize=64)
def disk(radius: float, softening: float) -> Tensor:
    """(k, k) float32 of sum one: a disk whose edge a Gaussian of 3 or 5 taps softens, mirrored at its own border."""
    reach, taps = (8, 3) if radius <= 8 else (int(np.ceil(radius)), 5)
    line = torch.arange(-reach, reach + 1)
    kernel = ((line**2 + line[:, None] ** 2) <= radius**2).float()[None]
    kernel /= kernel.sum()
    if softening > 0:
        kernel = gaussian_filter(kernel, softening, truncate=(taps // 2) / softening, mode="mirror")
    return kernel[0]


def zoom_blur(images: Tensor, constants: Constants) -> Tensor:
    """The mean of the image and its enlargements by np.arange(1, stop, step), the image itself counted once more."""
    stop, step = constants
    planes = images.permute(0, 3, 1, 2).float()
    total = planes.clone()
    factors = np.arange(1, stop, step)
    for factor in factors:
        total += clipped_zoom(planes, float(factor))
    return to_uint8(total.div_(len(factors) + 1).permute(0, 2, 3, 1).contiguous())


def clipped_zoom(planes: Tensor, factor: float) -> Tensor:
    """The centre of (B, C, H, W), enlarged by `factor` to the same size: corners onto corners, bilinear, trimmed."""
    for axis in (2, 3):
        low, share = zoom_places(planes.shape[axis], factor)
        low, share = low.to(planes.device), share.to(planes.device)
        share = share[:, None] if axis == 2 else share
        below, above = planes.index_select(axis, low), planes.index_select(axis, low + 1)
        planes = torch.lerp(below, above, share)
    return planes


@lru_cache(maxsize=128)
def zoom_places(size: int, factor: float) -> tuple[Tensor, Tensor]:
    """Where each pixel of an enlarged axis comes from: the pixel below (size,) and the share (size,) of the next."""
    kept = int(np.ceil(size / factor))
    grown = round(kept * factor)
    place = (np.arange(size) + (grown - size) // 2) * ((kept - 1) / (grown - 1)) + (size - kept) // 2
    low = np.minimum(place.astype(np.int64), size - 2)
    return torch.from_numpy(low), torch.from_numpy((place - low).astype(np.float32))
