"""Elastic transform: a random affine map, then a smooth random displacement of every pixel."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8


def draw_elastic(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray, ...]:
    """(3, 2) float32, moves (x, y) of three points, and (2, H, W) float32, displacements (x, y); all in [-1, 1)."""
    corners = 2 * rng.random((3, 2), dtype=np.float32) - 1
    field = 2 * rng.random((2, height, width), dtype=np.float32) - 1
    return corners, field


def elastic_transform(images: Tensor, constants: Constants, corners: Tensor, field: Tensor) -> Tensor:
    """Two bilinear resamplings: mirrored at the border pixel's centre, then at its edge."""
    amplitude, sigma, corner_move = constants
    _, height, width, _ = images.shape
    column = torch.arange(width, device=images.device, dtype=torch.float32)
    row = torch.arange(height, device=images.device, dtype=torch.float32)[:, None]
    matrix = inverse_affine(corners.double() * corner_move, height, width).float()[..., None, None]
    x = matrix[:, 0, 0] * column + matrix[:, 0, 1] * row + matrix[:, 0, 2]
    y = matrix[:, 1, 0] * column + matrix[:, 1, 1] * row + matrix[:, 1, 2]
    planes = sample(images.permute(0, 3, 1, 2).float().contiguous(), x, y, align_corners=True)
    if amplitude:
        moves = gaussian_filter(field.flatten(0, 1), sigma, truncate=3.0, mode="reflect").mul_(amplitude)
        dx, dy = moves.view_as(field).unbind(1)
        planes = sample(planes, dx.add_(column), dy.add_(row), align_corners=False)
    return to_uint8(planes).permute(0, 2, 3, 1).contiguous()


def inverse_affine(moves: Tensor, height: int, width: int) -> Tensor:
    """(B, 2, 3) from a pixel of the result to its source, for the affine map that moves three corners of a square.

    The square has its middle at the image's and a third of its shorter side as half a side t. Its corners are
    middle + (t, t), (t, -t) and (-t, -t).

    Args:
        moves: (B, 3, 2) float64, the (x, y) each corner moves by, pixels.
    """
    third = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float64, device=moves.device)
    corner = middle + torch.tensor([third, -third], dtype=torch.float64, device=moves.device) + moves[:, 1]
    across = (moves[:, 1] - moves[:, 2]) / (2 * third)  # where one step in x went, less the step itself
    down = (moves[:, 0] - moves[:, 1]) / (2 * third)
    a, b, c, d = 1 + across[:, 0], down[:, 0], across[:, 1], 1 + down[:, 1]
    inverse = torch.stack([d, -b, -c, a], 1).div_((a * d - b * c)[:, None]).view(-1, 2, 2)
    start = middle + torch.tensor([third, -third], device=moves.device)
    offset = start - (inverse * corner[:, None]).sum(2)
    return torch.cat([inverse, offset[..., None]], 2)


def sample(planes: Tensor, x: Tensor, y: Tensor, *, align_corners: bool) -> Tensor:
    """(B, C, H, W) read at pixel coordinates x, y (B, H, W), bilinear.

    Args:
        align_corners: the mirror stands at the centre of the border pixels (True) or at their outer edge (False).
    """
    b, _, height, width = planes.shape
    grid = torch.empty(b, height, width, 2, device=planes.device)
    for axis, (place, size) in enumerate(((x, width), (y, height))):
        span, shift = (size - 1, 0) if align_corners else (size, 1)
        grid[..., axis] = (place * (2 / span)).add_(shift / span - 1)
    return functional.grid_sample(planes, grid, "bilinear", "reflection", align_corners)
