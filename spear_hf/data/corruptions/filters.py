"""Separable Gaussian filters as sums of shifted images: the same bits for any batch, thread count and build."""

import math

import torch
from torch import Tensor


def gaussian_weights(sigma: float, truncate: float) -> list[float]:
    """w_k ~ exp(-k^2 / 2 sigma^2), k = 0..r with r = floor(truncate sigma + 1/2), so that w_0 + 2 sum w_k = 1."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return [1.0]
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(radius + 1)]
    total = weights[0] + 2 * math.fsum(weights[1:])
    return [weight / total for weight in weights]


def padded_index(size: int, radius: int, mode: str, device: torch.device) -> Tensor:
    """(size + 2 radius,) which pixel stands at each place of a padded axis.

    Args:
        mode: "nearest" (a a a | a b c d | d d d), "reflect" (c b a | a b c d | d c b) or
            "mirror" (d c b | a b c d | c b a).
    """
    place = torch.arange(-radius, size + radius, device=device)
    if mode == "nearest":
        return place.clamp(0, size - 1)
    edge = 1 if mode == "reflect" else 0  # whether the border pixel is repeated
    period = 2 * (size - 1 + edge)
    place = place.remainder(period)
    return torch.minimum(place, period - edge - place)


def pad_axis(images: Tensor, axis: int, radius: int, mode: str) -> Tensor:
    """The images with `radius` more pixels at both ends of one axis."""
    if radius == 0:
        return images
    return images.index_select(axis, padded_index(images.shape[axis], radius, mode, images.device))


def gaussian_filter(images: Tensor, sigma: float, truncate: float = 4.0, mode: str = "nearest") -> Tensor:
    """Gaussian smoothing of axes 1 and 2.

    Args:
        images: (B, H, W, ...) float.
        sigma: pixels.
        truncate: where the Gaussian ends, in sigmas.
        mode: what stands beyond the border; see `padded_index`.
    """
    centre, *sides = gaussian_weights(sigma, truncate)
    for axis in (1, 2):
        size, radius = images.shape[axis], len(sides)
        padded = pad_axis(images, axis, radius, mode)
        images = padded.narrow(axis, radius, size) * centre
        for shift, weight in enumerate(sides, start=1):
            images.add_(padded.narrow(axis, radius - shift, size), alpha=weight)
            images.add_(padded.narrow(axis, radius + shift, size), alpha=weight)
    return images
