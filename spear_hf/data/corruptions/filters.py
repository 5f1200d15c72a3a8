"""Gaussian filters along the height and width of images, and the conversion of grey levels to uint8."""

import math
from functools import lru_cache

import torch
from torch import Tensor

WIDEST_SUM = 32  # pixels; for a larger radius, one matrix per axis is faster than adding shifted images


def to_uint8(levels: Tensor) -> Tensor:
    """Grey levels clipped to [0, 255] and rounded down, as the published images were. Overwrites `levels`.

    >>> import torch
    >>> from spear_hf.data.corruptions.filters import to_uint8
    >>> to_uint8(torch.tensor([-3.0, 7.9, 300.0])).tolist()
    [0, 7, 255]
    """
    return levels.clamp_(0, 255).short().byte()  # through int16, because torch converts float to uint8 slowly


def gaussian_filter(images: Tensor, sigma: float, truncate: float = 4.0, mode: str = "nearest") -> Tensor:
    """Images after Gaussian smoothing along axes 1 and 2.

    >>> import torch
    >>> from spear_hf.data.corruptions.filters import gaussian_filter
    >>> gaussian_filter(torch.full((1, 8, 8, 3), 7.0), sigma=1.5).round().unique()
    tensor([7.])

    Args:
        images: (B, H, W, ...) float.
        sigma: standard deviation of the Gaussian, in pixels.
        truncate: distance at which the Gaussian is cut off, in sigmas.
        mode: values beyond the border; see `border_places`.
    """
    centre, *sides = _gaussian_weights(sigma, truncate)
    if len(sides) > WIDEST_SUM:
        return torch.stack([_wide_filter(image, sigma, truncate, mode) for image in images])
    for axis in (1, 2):
        size, radius = images.shape[axis], len(sides)
        padded = pad_axis(images, axis, radius, mode)
        images = padded.narrow(axis, radius, size) * centre
        for shift in range(radius, 0, -1):  # small terms first: the rounding error is smaller
            images.add_(padded.narrow(axis, radius - shift, size), alpha=sides[shift - 1])
            images.add_(padded.narrow(axis, radius + shift, size), alpha=sides[shift - 1])
    return images


def pad_axis(images: Tensor, axis: int, radius: int, mode: str) -> Tensor:
    """Images with `radius` more pixels at both ends of one axis.

    >>> import torch
    >>> from spear_hf.data.corruptions.filters import pad_axis
    >>> pad_axis(torch.tensor([1, 2, 3]), 0, 2, "mirror").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    if radius == 0:
        return images
    size = images.shape[axis]
    places = torch.arange(radius, device=images.device)
    before = images.index_select(axis, border_places(places - radius, size, mode))
    after = images.index_select(axis, border_places(places + size, size, mode))
    return torch.cat([before, images, after], axis)


def border_places(places: Tensor, size: int, mode: str) -> Tensor:
    """(n,) int64 in [0, size): the pixel that is read for each coordinate of an axis, also beyond the border.

    >>> import torch
    >>> from spear_hf.data.corruptions.filters import border_places
    >>> border_places(torch.arange(-2, 5), 3, "reflect").tolist()
    [1, 0, 0, 1, 2, 2, 1]

    Args:
        places: (n,) int64, any values.
        size: length of the axis, in pixels.
        mode: "nearest" (a a a | a b c d | d d d), "reflect" (c b a | a b c d | d c b) or
            "mirror" (d c b | a b c d | c b a).
    """
    if mode == "nearest":
        return places.clamp(0, size - 1)
    edge = 1 if mode == "reflect" else 0  # "reflect" repeats the border pixel, "mirror" does not
    period = 2 * (size - 1 + edge)
    places = places.remainder(period)
    return torch.minimum(places, period - edge - places)


def _gaussian_weights(sigma: float, truncate: float) -> list[float]:
    """w_k ~ exp(-k^2 / 2 sigma^2), k = 0..r with r = floor(truncate sigma + 1/2), so that w_0 + 2 sum w_k = 1."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return [1.0]
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(radius + 1)]
    total = weights[0] + 2 * math.fsum(weights[1:])
    return [weight / total for weight in weights]


def _wide_filter(image: Tensor, sigma: float, truncate: float, mode: str) -> Tensor:
    """Gaussian smoothing of one (H, W) image as G_h x G_w^T, in float64, so that rounding errors do not show."""
    down, across = (_filter_matrix(size, sigma, truncate, mode).to(image.device) for size in image.shape)
    return (down @ image.double() @ across.mT).to(image.dtype)


@lru_cache(maxsize=16)
def _filter_matrix(size: int, sigma: float, truncate: float, mode: str) -> Tensor:
    """(size, size) float64: row i holds the weight of every pixel in the smoothed pixel i, borders included."""
    centre, *sides = _gaussian_weights(sigma, truncate)
    weights = torch.tensor([*reversed(sides), centre, *sides], dtype=torch.float64)
    reach = torch.arange(-len(sides), len(sides) + 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for row in range(size):
        matrix[row].index_add_(0, border_places(row + reach, size, mode), weights)
    return matrix
