"""The image analysis that water drops are made with: Canny's edges, chamfer distances, histogram equalisation.

All of it is whole-numbered, so that a device or a batch cannot change a bit. Images are (B, H, W).
"""

import torch
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.filters import pad_axis

WEAK, STRONG = 50, 150  # gradient magnitudes |dx| + |dy| that an edge may continue with, and must have somewhere
TANGENT_22 = 13573  # tan(22.5 degrees) * 2**15, rounded
UNIT = 2**16  # one pixel of distance
MOVES = {(0, 1): 65536, (1, 1): 91750, (1, 2): 143976}  # 1, 1.4 and 2.1969 pixels: the 5 x 5 chamfer mask


def padded(images: Tensor, mode: str) -> Tensor:
    """One more pixel on every side."""
    return pad_axis(pad_axis(images, 1, 1, mode), 2, 1, mode)


def around(images: Tensor, dy: int, dx: int, reach: int = 1) -> Tensor:
    """The neighbours at (dy, dx) of an image that was padded by `reach` before."""
    _, height, width = images.shape
    return images[:, reach + dy : height - reach + dy, reach + dx : width - reach + dx]


def correlate(images: Tensor, kernel: list[list[int]], mode: str) -> Tensor:
    """Correlation of int32 images with a 3 x 3 kernel."""
    wide = padded(images, mode)
    terms = [(dy - 1, dx - 1, tap) for dy, row in enumerate(kernel) for dx, tap in enumerate(row) if tap]
    return torch.stack([around(wide, dy, dx) * tap for dy, dx, tap in terms]).sum(0, dtype=torch.int32)


def canny(images: Tensor) -> Tensor:
    """Bool (B, H, W): ridges of the gradient that are strong, or weak and connected to strong ones.

    Args:
        images: int32 grey levels.
    """
    dx = correlate(images, [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], "nearest")
    dy = correlate(images, [[-1, -2, -1], [0, 0, 0], [1, 2, 1]], "nearest")
    magnitude = dx.abs() + dy.abs()
    ridge = (magnitude > WEAK) & is_ridge(magnitude, dx, dy)
    edges = ridge & (magnitude > STRONG)
    while True:
        near = functional.max_pool2d(edges[:, None].half(), 3, stride=1, padding=1)[:, 0] > 0
        grown = near & ridge
        if torch.equal(grown, edges):
            return edges
        edges = grown


def is_ridge(magnitude: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Where the gradient is largest along its own direction, which counts as across, down or one of two diagonals."""
    wide = functional.pad(magnitude, (1, 1, 1, 1))
    flat = dx.abs().long() * TANGENT_22
    steep = flat + (dx.abs().long() << 16)
    height = dy.abs().long() << 15
    across = (magnitude > around(wide, 0, -1)) & (magnitude >= around(wide, 0, 1))
    down = (magnitude > around(wide, -1, 0)) & (magnitude >= around(wide, 1, 0))
    falling = (magnitude > around(wide, -1, -1)) & (magnitude > around(wide, 1, 1))
    rising = (magnitude > around(wide, -1, 1)) & (magnitude > around(wide, 1, -1))
    diagonal = torch.where((dx ^ dy) < 0, rising, falling)
    return torch.where(height < flat, across, torch.where(height > steep, down, diagonal))


def chamfer_distance(edges: Tensor, largest: int) -> Tensor:
    """int32 (B, H, W): the distance to the nearest edge in units of 2**-16 pixels, cut at `largest` pixels."""
    distance = torch.where(edges, 0, largest * UNIT).int()
    steps = [(dy, dx, cost) for (a, b), cost in MOVES.items() for dy, dx in sorted(signed(a, b) | signed(b, a))]
    for _ in range(largest):  # every round carries a distance one pixel further
        wide = functional.pad(distance, (2, 2, 2, 2), value=largest * UNIT)
        nearer = distance.clone()
        for dy, dx, cost in steps:
            torch.minimum(nearer, around(wide, dy, dx, 2) + cost, out=nearer)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def signed(dy: int, dx: int) -> set[tuple[int, int]]:
    """A move with all its signs."""
    return {(dy, dx), (-dy, dx), (dy, -dx), (-dy, -dx)}


def equalize(images: Tensor) -> Tensor:
    """int32 (B, H, W): each image's levels 0..255 spread so that their distribution is even."""
    return torch.stack([equalize_one(image) for image in images])


def equalize_one(image: Tensor) -> Tensor:
    """The levels of one image through its own distribution; an image of one level stays as it is."""
    counts = torch.bincount(image.flatten(), minlength=256).cpu()
    first = int(counts.nonzero()[0])
    rest = image.numel() - int(counts[first])
    if rest == 0:
        return image
    after_first = counts.cumsum(0).sub_(counts[first])
    levels = (after_first.float() * (torch.tensor(255.0) / rest)).round_().clamp_(0, 255).int()
    return levels.to(image.device).index_select(0, image.flatten()).view_as(image)
