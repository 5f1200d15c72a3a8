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
        steps: (B, n^2 - 1) in [-1, 1), for each level: centres, middles of horizontal edges, of vertical edges.
        size: n, a power of two.
        decay: what the amplitude is divided by after each level.
    """
    b, used, amplitude, stride = len(steps), 0, 100.0, size
    field = torch.zeros(b, size, size, dtype=torch.float32, device=steps.device)

    def moved(total: Tensor) -> Tensor:
        """A quarter of a sum of four neighbours, plus the next random steps."""
        nonlocal used
        count = total.shape[1] * total.shape[2]
        step = steps[:, used : used + count].view_as(total)
        used += count
        return torch.add(total / 4, step, alpha=amplitude**2)

    while stride >= 2:
        half = stride // 2
        corners = field[:, ::stride, ::stride]
        pairs = corners + corners.roll(-1, 1)
        centres = moved(pairs + pairs.roll(-1, 2))
        field[:, half::stride, half::stride] = centres
        field[:, ::stride, half::stride] = moved(centres + centres.roll(1, 1) + corners + corners.roll(-1, 2))
        field[:, half::stride, ::stride] = moved(centres + centres.roll(1, 2) + corners + corners.roll(-1, 1))
        stride, amplitude = half, amplitude / decay
    field -= field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)
