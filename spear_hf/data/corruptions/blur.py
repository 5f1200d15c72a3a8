"""Blurs: defocus, motion (as ImageMagick 6 computes it), zoom and Gaussian."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, pad_axis, to_uint8

FEW_TAPS = 40  # up to this many taps, adding shifted images is faster than the Fourier transform
SMALLEST_TAP = 1e-7  # of a kernel of sum one; a smaller tap cannot change a grey level


def defocus_blur(images: Tensor, constants: Constants) -> Tensor:
    """Images in which every point becomes a disk with a soft edge; the image is mirrored at its border pixels.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import defocus_blur
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> defocus_blur(grey, (3, 0.1)).shape
    torch.Size([1, 16, 16, 3])
    """
    kernel = disk(*constants)
    reach = len(kernel) // 2
    padded = pad_axis(pad_axis(images, 1, reach, "mirror"), 2, reach, "mirror")
    taps = (kernel > SMALLEST_TAP).nonzero().tolist()
    if len(taps) > FEW_TAPS:
        return torch.stack([fourier_correlation(image, kernel) for image in padded])
    _, height, width, _ = images.shape
    padded = padded.float()
    levels = torch.zeros_like(images, dtype=torch.float32)
    for y, x in taps:
        levels.add_(padded[:, y : y + height, x : x + width], alpha=float(kernel[y, x]))
    return to_uint8(levels)


@lru_cache(maxsize=16)
def disk(radius: float, softening: float) -> Tensor:
    """(k, k) float32 of sum one: a disk, whose edge a Gaussian of 3 or 5 taps softens.

    >>> from spear_hf.data.corruptions.blur import disk
    >>> disk(3, 0.1).shape
    torch.Size([17, 17])

    Args:
        radius: of the disk, in pixels.
        softening: sigma of the Gaussian, in pixels; 0 leaves the edge sharp.
    """
    reach, taps = (8, 3) if radius <= 8 else (math.ceil(radius), 5)
    line = torch.arange(-reach, reach + 1)
    kernel = ((line**2 + line[:, None] ** 2) <= radius**2).float()[None]
    kernel /= kernel.sum()
    if softening > 0:
        kernel = gaussian_filter(kernel, softening, truncate=(taps // 2) / softening, mode="mirror")
    return kernel[0]


def fourier_correlation(padded: Tensor, kernel: Tensor) -> Tensor:
    """(H, W, 3) uint8: the correlation of a padded image with a symmetric kernel.

    The Fourier transform makes the correlation circular; only pixels of the padding are affected.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import disk, fourier_correlation
    >>> fourier_correlation(torch.zeros(32, 24, 3), disk(3, 0.1)).shape
    torch.Size([16, 8, 3])

    Args:
        padded: (H + k - 1, W + k - 1, 3).
        kernel: (k, k) from `disk`.
    """
    height, width, _ = padded.shape
    size = _fast_size(height), _fast_size(width)
    spectrum = torch.fft.rfft2(padded.permute(2, 0, 1).float(), s=size)
    levels = torch.fft.irfft2(spectrum.mul_(_kernel_spectrum(kernel, size).to(padded.device)), s=size)
    border = len(kernel) - 1
    return to_uint8(levels[:, border:height, border:width]).permute(1, 2, 0)


def _fast_size(size: int) -> int:
    """The next length without a prime factor above 5: Fourier transforms of such lengths are fast."""
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


@lru_cache(maxsize=16)
def _kernel_spectrum(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """The Fourier transform of a kernel on a grid. Tensors hash by identity; `disk` returns the same one each time."""
    return torch.fft.rfft2(kernel, s=size)


def draw_angle(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """() float64, degrees in [-45, 45).

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.blur import draw_angle
    >>> draw_angle(np.random.default_rng(0), 16, 16, (10, 3))[0].round(2).item()
    12.33
    """
    return (rng.uniform(-45, 45, size=()),)


def motion_blur(images: Tensor, constants: Constants, angle: Tensor) -> Tensor:
    """Images in which each pixel is the mean over a line that starts at the pixel.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import motion_blur
    >>> white = torch.full((1, 16, 16, 3), 255, dtype=torch.uint8)
    >>> motion_blur(white, (10, 3), torch.tensor([30.0])).unique()
    tensor([255], dtype=torch.uint8)
    """
    radius, sigma = constants
    return motion_filter(images.float(), radius, sigma, angle)


def motion_filter(images: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """(B, H, W, C) uint8: out(p) = floor(sum_i w_i in(p + offset_i) + 1/514); the border pixels are repeated outwards.

    ImageMagick computes in 16 bits, where level v is 257 v, and drops the lower byte. That is a floor with an offset
    of 1/514.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import motion_filter
    >>> motion_filter(torch.full((1, 16, 16, 1), 9.0), 8, 3, torch.tensor([0.0])).shape
    torch.Size([1, 16, 16, 1])

    Args:
        images: (B, H, W, C) float, grey levels.
        radius: half the length of the line, in pixels.
        sigma: of the weights along the line, in pixels.
        angle: (B,) degrees.
    """
    weights = _motion_weights(radius, sigma)
    offsets = [_motion_offsets(len(weights), degrees) for degrees in angle.tolist()]
    reach_y, reach_x = (max(abs(one[axis]) for line in offsets for one in line) for axis in (0, 1))
    padded = pad_axis(pad_axis(images, 1, reach_y, "nearest"), 2, reach_x, "nearest")
    _, height, width, _ = images.shape
    levels = torch.full_like(images, 1 / 514)
    for image, result, line in zip(padded, levels, offsets, strict=True):
        for weight, (dy, dx) in zip(weights, line, strict=True):
            top, left = reach_y + dy, reach_x + dx
            result.add_(image[top : top + height, left : left + width], alpha=weight)
    return to_uint8(levels)


def _motion_weights(radius: float, sigma: float) -> list[float]:
    """w_i ~ exp(-i^2 / 2 sigma^2), i = 0..2 ceil(radius), of sum one."""
    if sigma == 0:
        return [1.0]
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * math.ceil(radius) + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _motion_offsets(taps: int, angle: float) -> list[tuple[int, int]]:
    """(dy, dx) of each tap: i steps along `angle` degrees, halves rounded down."""
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    return [(math.ceil(i * sine - 0.5), math.ceil(i * cosine - 0.5)) for i in range(taps)]


def zoom_blur(images: Tensor, constants: Constants) -> Tensor:
    """The mean of an image and its enlargements by np.arange(1, stop, step); the image itself is counted twice.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import zoom_blur
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> zoom_blur(grey, (1.11, 0.01)).shape
    torch.Size([1, 16, 16, 3])
    """
    factors = np.arange(1, *constants)  # with float steps it includes the end at some severities, as published
    planes = images.permute(0, 3, 1, 2).float().contiguous()
    total = planes * (1 + len(factors[:1]))  # the first factor is 1
    for factor in factors[1:]:
        total += clipped_zoom(planes, float(factor))
    return to_uint8(total.div_(len(factors) + 1)).permute(0, 2, 3, 1).contiguous()


def clipped_zoom(planes: Tensor, factor: float) -> Tensor:
    """(B, C, H, W): the centre of each plane, enlarged by `factor`, bilinear, corner pixels onto corner pixels.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import clipped_zoom
    >>> clipped_zoom(torch.arange(16.0).view(1, 1, 4, 4), 2.0)[0, 0]
    tensor([[ 5.0000,  5.3333,  5.6667,  6.0000],
            [ 6.3333,  6.6667,  7.0000,  7.3333],
            [ 7.6667,  8.0000,  8.3333,  8.6667],
            [ 9.0000,  9.3333,  9.6667, 10.0000]])
    """
    b, _, height, width = planes.shape
    grid = _zoom_grid(height, width, factor, planes.dtype).to(planes.device).expand(b, height, width, 2)
    # functional.interpolate would be simpler, but its last bits depend on the number of threads
    return functional.grid_sample(planes, grid, "bilinear", "border", align_corners=True)


@lru_cache(maxsize=64)
def _zoom_grid(height: int, width: int, factor: float, dtype: torch.dtype) -> Tensor:
    """(H, W, 2): the (x, y) that each pixel of the enlarged image is read at, in [-1, 1] from edge to edge."""
    x, y = (torch.from_numpy(_zoom_places(size, factor) * (2 / (size - 1)) - 1) for size in (width, height))
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)], 2).to(dtype)


def _zoom_places(size: int, factor: float) -> np.ndarray:
    """(size,) float64: the coordinate that each pixel of an enlarged and trimmed axis is read at."""
    kept = int(np.ceil(size / factor))
    grown = round(kept * factor)
    return (np.arange(size) + (grown - size) // 2) * ((kept - 1) / (grown - 1)) + (size - kept) // 2


def gaussian_blur(images: Tensor, constants: Constants) -> Tensor:
    """Images after Gaussian smoothing with `sigma` pixels.

    >>> import torch
    >>> from spear_hf.data.corruptions.blur import gaussian_blur
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> gaussian_blur(grey, (1.0,)).shape
    torch.Size([1, 16, 16, 3])
    """
    (sigma,) = constants
    return to_uint8(gaussian_filter(images.float(), sigma))
