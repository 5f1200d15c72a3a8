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
    planes = sample(images.permute(0, 3, 1, 2).float(), x, y, align_corners=True)
    if amplitude:
        moves = gaussian_filter(field.movedim(1, 3), sigma, truncate=3.0, mode="reflect") * amplitude
        planes = sample(planes, column + moves[..., 0], row + moves[..., 1], align_corners=False)
    return to_uint8(planes.permute(0, 2, 3, 1).contiguous())


def inverse_affine(moves: Tensor, height: int, width: int) -> Tensor:
    """(B, 2, 3) from a pixel of the result to its source, for the affine map that moves three points.

    Args:
        moves: (B, 3, 2) float64, pixels, of three corners of the square of a third of the image around its centre.
    """
    centre = torch.tensor([width // 2, height // 2], device=moves.device)
    third = min(height, width) // 3
    corners = centre + third * torch.tensor([[1, 1], [1, -1], [-1, -1]], device=moves.device)
    moved = torch.cat([corners + moves, torch.ones_like(moves[..., :1])], 2)
    return torch.linalg.solve(moved, corners.expand(len(moves), 3, 2).double()).mT


def sample(planes: Tensor, x: Tensor, y: Tensor, *, align_corners: bool) -> Tensor:
    """(B, C, H, W) read at pixel coordinates x, y (B, H, W), bilinear.

    Args:
        align_corners: the mirror stands at the centre of the border pixels (True) or at their outer edge (False).
    """
    _, _, height, width = planes.shape
    if align_corners:
        grid = torch.stack([x * (2 / (width - 1)) - 1, y * (2 / (height - 1)) - 1], 3)
    else:
        grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], 3)
    return functional.grid_sample(planes, grid, "bilinear", "reflection", align_corners)
