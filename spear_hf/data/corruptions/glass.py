"""Glass blur: pixels of a smoothed image jump to near places, one after the other."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8


def jump_region(size: int, reach: int) -> tuple[int, int]:
    """[first, last) of the rows (or columns) whose pixels jump."""
    return reach + 1, size - reach + 1


def rounds_and_reach(constants: Constants) -> tuple[int, int]:
    """How often all pixels jump, and how far: whole numbers also between the published severities."""
    _, reach, rounds = constants
    return round(rounds), max(1, round(reach))


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
    b, height, width, channels = images.shape
    smooth = to_uint8(gaussian_filter(images.float(), sigma)).flatten(1, 2)
    for turn in range(rounds):
        source = jump_sources(jumps[:, turn], height, width, reach)
        smooth = smooth.gather(1, source.unsqueeze(2).expand(b, height * width, channels))
    return to_uint8(gaussian_filter(smooth.view(images.shape).float(), sigma))


def jump_sources(jumps: Tensor, height: int, width: int, reach: int) -> Tensor:
    """(B, H W) int64: which old pixel every pixel holds after one round.

    The published code means to swap x[p] and x[q], but its assignment of two views only sets x[p] = x[q]. Pixels are
    visited from the last to the first, so a q after p has been overwritten before: p then holds what q got. Following
    these chains is doubling a pointer until nothing moves (the longest chain measured is 11 long).
    """
    b = len(jumps)
    (top, bottom), (left, right) = jump_region(height, reach), jump_region(width, reach)
    offset = jumps.flip(1, 2).to(torch.int64)
    place = torch.arange(height * width, device=jumps.device).view(height, width)
    here = place[top:bottom, left:right]
    target = here + offset[..., 1] * width + offset[..., 0]
    source = place.repeat(b, 1, 1)
    source[:, top:bottom, left:right] = target
    link = place.repeat(b, 1, 1)  # where the value of a pixel that had jumped already came from; itself: nowhere
    row = torch.div(target, width, rounding_mode="floor")
    column = target - row * width
    had_jumped = (target > here) & (row < bottom) & (column >= left) & (column < right)
    link[:, top:bottom, left:right] = torch.where(had_jumped, target, here)
    link = link.flatten(1)
    while True:
        further = link.gather(1, link)
        if torch.equal(further, link):
            return source.flatten(1).gather(1, link)
        link = further
