"""Fractal clouds by the diamond-square algorithm, on a torus."""

import torch
from torch import Tensor


def plasma_size(height: int, width: int) -> int:
    """The smallest power of two that covers an image."""
    return 1 << (max(height, width) - 1).bit_length()


def plasma_fractal(steps: Tensor, size: int, decay: float) -> Tensor:
    """(B, n, n) float32 in [0, 1], darkest 0 and brightest 1.

    Every level fills the centre of each square with the mean of its corners, then the middle of each edge with the
    mean of its neighbours, each plus a random step; the amplitude a^2 starts at 100^2 and `a` falls by `decay`.

    Args:
        steps: (B, n^2 - 1) in [-1, 1), for each level: centres, middles of edges across, of edges down.
        size: n, a power of two.
        decay: what the amplitude is divided by after each level.
    """
    used, amplitude = 0, 100.0
    corners = steps.new_zeros(len(steps), 1, 1)

    def moved(total: Tensor) -> Tensor:
        """A quarter of a sum of four neighbours, plus the next random steps."""
        nonlocal used
        count = total[0].numel()
        step = steps[:, used : used + count].view_as(total)
        used += count
        return total.div_(4).add_(step, alpha=amplitude**2)

    while corners.shape[1] < size:
        pairs = corners + corners.roll(-1, 1)
        centres = moved(pairs + pairs.roll(-1, 2))
        across = moved(centres + centres.roll(1, 1) + corners + corners.roll(-1, 2))
        down = moved(centres + centres.roll(1, 2) + pairs)
        rows = torch.stack([corners, across], 3).flatten(2), torch.stack([down, centres], 3).flatten(2)
        corners = torch.stack(rows, 2).flatten(1, 2)
        amplitude /= decay
    corners -= corners.amin((1, 2), keepdim=True)
    return corners / corners.amax((1, 2), keepdim=True)
