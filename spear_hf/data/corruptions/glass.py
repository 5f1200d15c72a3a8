"""Glass blur: pixels of a smoothed image jump to near places, one after the other."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8

FINE_SIGMA = 0.5  # pixels; a narrower Gaussian leaves values so near whole levels that float32 floors some wrongly


def rounds_and_reach(constants: Constants) -> tuple[int, int]:
    """How often all pixels jump, and how far: whole numbers also between the published severities."""
    _, reach, rounds = constants
    return round(rounds), max(1, round(reach))


def jump_region(size: int, reach: int) -> tuple[int, int]:
    """[first, end) of the rows (or columns) whose pixels jump."""
    return reach + 1, size - reach + 1


def draw_glass(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(rounds, rows, columns, 2) int8 in [-reach, reach): the (dx, dy) each pixel takes its value from."""
    rounds, reach = rounds_and_reach(constants)
    (top, bottom), (left, right) = jump_region(height, reach), jump_region(width, reach)
    size = (rounds, bottom - top, right - left, 2)
    return (rng.integers(-reach, reach, size=size, dtype=np.int8),)


def glass_blur(images: Tensor, constants: Constants, jumps: Tensor) -> Tensor:
    """Smooth, let the pixels jump, smooth.

    Args:
        jumps: (B, rounds, rows, columns, 2) int8, (dx, dy) in the order in which pixels jump: from the last row up,
            in each row from the last column on.
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
    """(B H W,) int32: which old pixel every pixel of a batch holds after one round.

    The published code means to swap x[p] and x[q], but its assignment of two views only sets x[p] = x[q]. Pixels are
    visited from the last to the first, so a q after p has jumped before, and p then holds what q got. Following these
    chains is doubling a pointer until nothing moves (the longest chain measured is 11 long).
    """
    b, device = len(jumps), jumps.device
    (top, bottom), (left, right) = jump_region(height, reach), jump_region(width, reach)
    source = torch.arange(b * height * width, dtype=torch.int32, device=device).view(b, height, width)
    link = source.clone()  # the pixel, jumped before, that a pixel follows; itself where it follows none
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
