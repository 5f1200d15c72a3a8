"""Defocus blur: the image of every point is a disk with a softened edge."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, pad_axis
from spear_hf.data.corruptions.pixels import to_uint8

FEW_TAPS = 40  # up to this many taps, adding shifted images beats the Fourier transform
SMALLEST_TAP = 1e-7  # of a kernel of sum one: what cannot move a grey level


def defocus_blur(images: Tensor, constants: Constants) -> Tensor:
    """Correlation with a disk, the image mirrored at its border pixels."""
    kernel = disk(*constants)
    reach = len(kernel) // 2
    padded = pad_axis(pad_axis(images, 1, reach, "mirror"), 2, reach, "mirror")
    taps = (kernel > SMALLEST_TAP).nonzero().tolist()
    if len(taps) > FEW_TAPS:
        return torch.stack([by_fourier(image, kernel) for image in padded])
    _, height, width, _ = images.shape
    padded = padded.float()
    levels = torch.zeros_like(images, dtype=torch.float32)
    for y, x in taps:
        levels.add_(padded[:, y : y + height, x : x + width], alpha=float(kernel[y, x]))
    return to_uint8(levels)


def by_fourier(padded: Tensor, kernel: Tensor) -> Tensor:
    """(H, W, 3) uint8 from an image (H + k - 1, W + k - 1, 3) and a symmetric kernel (k, k).

    The correlation is circular, but wraps around in the padding alone.
    """
    height, width, _ = padded.shape
    size = fast_size(height), fast_size(width)
    spectrum = torch.fft.rfft2(padded.permute(2, 0, 1).float(), s=size)
    levels = torch.fft.irfft2(spectrum.mul_(kernel_spectrum(kernel, size).to(padded.device)), s=size)
    border = len(kernel) - 1
    return to_uint8(levels[:, border:height, border:width]).permute(1, 2, 0)


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


@lru_cache(maxsize=16)
def kernel_spectrum(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """The Fourier transform of a kernel on a grid of a size. Kernels come from `disk`, so the same one is found."""
    return torch.fft.rfft2(kernel, s=size)


@lru_cache(maxsize=16)
def disk(radius: float, softening: float) -> Tensor:
    """(k, k) float32 of sum one: a disk whose edge a Gaussian of 3 or 5 taps softens, mirrored at its own border."""
    reach, taps = (8, 3) if radius <= 8 else (math.ceil(radius), 5)
    line = torch.arange(-reach, reach + 1)
    kernel = ((line**2 + line[:, None] ** 2) <= radius**2).float()[None]
    kernel /= kernel.sum()
    if softening > 0:
        kernel = gaussian_filter(kernel, softening, truncate=(taps // 2) / softening, mode="mirror")
    return kernel[0]
