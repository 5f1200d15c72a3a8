"""Glass blur: pixels of a smoothed image copy values from near pixels, one after the other."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, to_uint8

FINE_SIGMA = 0.5  # pixels; for a smaller sigma, values are so close to whole levels that float32 rounds some wrongly


def rounds_and_reach(constants: Constants) -> tuple[int, int]:
    """The number of rounds of glass blur, and the largest jump in pixels; whole numbers at fractional severities too.

    >>> from spear_hf.data.corruptions.glass import rounds_and_reach
    >>> rounds_and_reach((0.95, 2.4, 1.6))
    (2, 2)
    """
    _, reach, rounds = constants
    return round(rounds), max(1, round(reach))


def draw_glass(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(rounds, rows, columns, 2) int8 in [-reach, reach): the (dx, dy) from which each pixel takes its value.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.glass import draw_glass
    >>> draw_glass(np.random.default_rng(0), 16, 20, (0.7, 2, 3))[0].shape
    (3, 12, 16, 2)
    """
    rounds, reach = rounds_and_reach(constants)
    (top, bottom), (left, right) = _jump_region(height, reach), _jump_region(width, reach)
    size = (rounds, bottom - top, right - left, 2)
    return (rng.integers(-reach, reach, size=size, dtype=np.int8),)


def glass_blur(images: Tensor, constants: Constants, jumps: Tensor) -> Tensor:
    """Images that are smoothed, then pixels copy values from near pixels, then smoothed again.

    >>> import torch
    >>> from spear_hf.data.corruptions.glass import glass_blur
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> glass_blur(grey, (0.7, 2, 1), torch.zeros(1, 1, 12, 12, 2, dtype=torch.int8)).shape
    torch.Size([1, 16, 16, 3])

    Args:
        images: (B, H, W, 3) uint8.
        constants: sigma, largest jump in pixels, rounds.
        jumps: (B, rounds, rows, columns, 2) int8, (dx, dy) in the order in which pixels are visited: from the last
            row up, and in each row from the last column to the first.
    """
    sigma = constants[0]
    rounds, reach = rounds_and_reach(constants)
    dtype = torch.float64 if sigma < FINE_SIGMA else torch.float32
    b, height, width, channels = images.shape
    smooth = to_uint8(gaussian_filter(images.to(dtype), sigma)).to(dtype)
    source = torch.arange(b * height * width, dtype=torch.int32, device=images.device)
    for turn in range(rounds):
        source = source.index_select(0, jump_sources(jumps[:, turn], height, width, reach))
    jumped = smooth.view(-1, channels).index_select(0, source).view_as(images)
    return to_uint8(gaussian_filter(jumped, sigma))


def jump_sources(jumps: Tensor, height: int, width: int, reach: int) -> Tensor:
    """(B H W,) int32: the old pixel whose value each pixel of a batch holds after one round of glass blur.

    The published code means to swap x[p] and x[q], but its assignment of two views only sets x[p] = x[q]. It visits
    pixels from the last to the first. If q comes after p, then q was visited before p, and p gets the value that q
    got. Such chains are followed by pointer doubling until nothing changes (the longest chain measured has 11 pixels).

    >>> import torch
    >>> from spear_hf.data.corruptions.glass import jump_sources
    >>> still = torch.zeros(1, 1, 1, 2, dtype=torch.int8)
    >>> jump_sources(still, 3, 3, reach=1).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    b, device = len(jumps), jumps.device
    (top, bottom), (left, right) = _jump_region(height, reach), _jump_region(width, reach)
    source = torch.arange(b * height * width, dtype=torch.int32, device=device).view(b, height, width)
    link = source.clone()  # the pixel, visited before, that a pixel copies; the pixel itself if there is none
    dx, dy = jumps.flip(1, 2).unbind(3)
    row = torch.arange(top, bottom, dtype=torch.int16, device=device)[:, None] + dy
    column = torch.arange(left, right, dtype=torch.int16, device=device) + dx
    step = dy.int() * width + dx
    follows = (step > 0) & (row < bottom) & (column >= left) & (column < right)
    source[:, top:bottom, left:right] += step
    link[:, top:bottom, left:right] += step.mul_(follows)
    source, link = source.flatten(), link.flatten()
    while not torch.equal(further := link.index_select(0, link), link):
        link = further
    return source.index_select(0, link)


def _jump_region(size: int, reach: int) -> tuple[int, int]:
    """[first, end) of the rows (or columns) whose pixels jump."""
    return reach + 1, size - reach + 1
