"""Spatter: drops of water or mud, and the image analysis that water is made with.

The analysis (Canny's edges, chamfer distances, histogram equalisation) computes with integers only, so that neither the
device nor the batch can change a bit.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, pad_axis, to_uint8

MUD = (63.0, 42.0, 20.0)  # RGB
WATER = (175.0, 238.0, 238.0)
BOX = [[1, 1, 1], [1, 1, 1], [1, 1, 1]]
EMBOSS = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
GLITTER = 20  # pixels; a drop glitters up to this distance from its edge
WEAK, STRONG = 50, 150  # gradient |dx| + |dy| that every pixel of an edge needs, and that one pixel of it needs
TANGENT_22 = 13573  # tan(22.5 degrees) * 2**15, rounded
UNIT = 2**16  # one pixel of distance
MOVES = {(0, 1): 65536, (1, 1): 91750, (1, 2): 143976}  # 1, 1.4 and 2.1969 pixels: the 5 x 5 chamfer mask


def draw_liquid(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W) float32, standard normal.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.spatter import draw_liquid
    >>> draw_liquid(np.random.default_rng(0), 16, 20, ())[0].shape
    (16, 20)
    """
    return (rng.standard_normal((height, width), dtype=np.float32),)


def spatter(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """Images with drops where smoothed noise exceeds a threshold: water glitters along its edges, mud covers.

    >>> import torch
    >>> from spear_hf.data.corruptions.spatter import spatter
    >>> grey, mud = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8), (0.65, 0.3, 1, 0.65, 1.5, 1)
    >>> spatter(grey, mud, torch.full((1, 16, 16), 9.0))[0, 0, 0].tolist()
    [62, 41, 19]
    """
    mean, deviation, sigma, threshold, strength, is_mud = constants
    liquid = gaussian_filter(normal.double().mul_(deviation).add_(mean), sigma)
    if is_mud:
        return _add_mud(images, liquid > threshold, strength)
    return _add_water(images, torch.where(liquid < threshold, 0.0, liquid), strength)


def _add_mud(images: Tensor, covered: Tensor, sigma: float) -> Tensor:
    """Brown where the smoothed mask (B, H, W) is near 1."""
    mask = gaussian_filter(covered.float(), sigma)
    mask = torch.where(mask < 0.8, 0.0, mask).unsqueeze(3)
    return to_uint8(images * (1 - mask) + mask * torch.tensor(MUD, device=images.device))


def _add_water(images: Tensor, liquid: Tensor, strength: float) -> Tensor:
    """Pale turquoise light on the drops (B, H, W), embossed by the distance to their edges.

    An image without drops stays as it is; the published code divides by zero there.
    """
    depth = (liquid * 255).int() & 255
    distance = chamfer_distance(canny(depth), GLITTER)
    level = _correlate(distance, BOX, "mirror").div(9 * UNIT, rounding_mode="floor")
    relief = _correlate(equalize(level), EMBOSS, "mirror").clamp_(0, 255)
    relief = _correlate(relief, BOX, "mirror").add_(4).div(9, rounding_mode="floor")
    light = (depth * relief).float()
    light = light / light.amax((1, 2), keepdim=True).clamp(min=1) * strength
    return to_uint8(images + light.unsqueeze(3) * torch.tensor(WATER, device=images.device))


def canny(images: Tensor) -> Tensor:
    """(B, H, W) bool: ridges of the gradient that are strong, or weak and connected to strong ones.

    >>> import torch
    >>> from spear_hf.data.corruptions.spatter import canny
    >>> step = torch.tensor([0, 0, 200, 200], dtype=torch.int32).expand(1, 4, 4)
    >>> canny(step)[0, 1].tolist()
    [False, True, False, False]

    Args:
        images: (B, H, W) int32 grey levels.
    """
    dx = _correlate(images, [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], "nearest")
    dy = _correlate(images, [[-1, -2, -1], [0, 0, 0], [1, 2, 1]], "nearest")
    magnitude = dx.abs() + dy.abs()
    ridge = (magnitude > WEAK) & _is_ridge(magnitude, dx, dy)
    edges = ridge & (magnitude > STRONG)
    while True:
        near = functional.max_pool2d(edges[:, None].half(), 3, stride=1, padding=1)[:, 0] > 0
        grown = near & ridge
        if torch.equal(grown, edges):
            return edges
        edges = grown


def _is_ridge(magnitude: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Where the gradient is largest along its own direction (horizontal, vertical or one of two diagonals)."""
    wide = functional.pad(magnitude, (1, 1, 1, 1))
    flat = dx.abs().long() * TANGENT_22
    steep = flat + (dx.abs().long() << 16)
    height = dy.abs().long() << 15
    across = (magnitude > _around(wide, 0, -1)) & (magnitude >= _around(wide, 0, 1))
    down = (magnitude > _around(wide, -1, 0)) & (magnitude >= _around(wide, 1, 0))
    falling = (magnitude > _around(wide, -1, -1)) & (magnitude > _around(wide, 1, 1))
    rising = (magnitude > _around(wide, -1, 1)) & (magnitude > _around(wide, 1, -1))
    diagonal = torch.where((dx ^ dy) < 0, rising, falling)
    return torch.where(height < flat, across, torch.where(height > steep, down, diagonal))


def chamfer_distance(edges: Tensor, largest: int) -> Tensor:
    """(B, H, W) int32: the distance to the nearest edge in units of 2**-16 pixels, at most `largest` pixels.

    >>> import torch
    >>> from spear_hf.data.corruptions.spatter import UNIT, chamfer_distance
    >>> (chamfer_distance(torch.tensor([[[True, False, False, False]]]), 2) / UNIT).tolist()
    [[[0.0, 1.0, 2.0, 2.0]]]
    """
    distance = torch.where(edges, 0, largest * UNIT).int()
    steps = [(dy, dx, cost) for (a, b), cost in MOVES.items() for dy, dx in sorted(_signed(a, b) | _signed(b, a))]
    for _ in range(largest):  # every round spreads distances by one pixel
        wide = functional.pad(distance, (2, 2, 2, 2), value=largest * UNIT)
        nearer = distance.clone()
        for dy, dx, cost in steps:
            torch.minimum(nearer, _around(wide, dy, dx, 2) + cost, out=nearer)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def _signed(dy: int, dx: int) -> set[tuple[int, int]]:
    """A move with all its signs."""
    return {(dy, dx), (-dy, dx), (dy, -dx), (-dy, -dx)}


def equalize(images: Tensor) -> Tensor:
    """(B, H, W) int32: each image's levels 0..255 after histogram equalisation.

    >>> import torch
    >>> from spear_hf.data.corruptions.spatter import equalize
    >>> equalize(torch.tensor([[[5, 5, 6, 9]]], dtype=torch.int32)).tolist()
    [[[0, 0, 128, 255]]]
    """
    return torch.stack([_equalize_one(image) for image in images])


def _equalize_one(image: Tensor) -> Tensor:
    """One image's levels mapped through their own distribution; an image of a single level stays as it is."""
    counts = torch.bincount(image.flatten(), minlength=256).cpu()
    first = int(counts.nonzero()[0])
    rest = image.numel() - int(counts[first])
    if rest == 0:
        return image
    after_first = counts.cumsum(0).sub_(counts[first])
    levels = (after_first.float() * (torch.tensor(255.0) / rest)).round_().clamp_(0, 255).int()
    return levels.to(image.device).index_select(0, image.flatten()).view_as(image)


def _correlate(images: Tensor, kernel: list[list[int]], mode: str) -> Tensor:
    """Correlation of (B, H, W) int32 images with a 3 x 3 kernel."""
    wide = pad_axis(pad_axis(images, 1, 1, mode), 2, 1, mode)
    terms = [(dy - 1, dx - 1, tap) for dy, row in enumerate(kernel) for dx, tap in enumerate(row) if tap]
    return torch.stack([_around(wide, dy, dx) * tap for dy, dx, tap in terms]).sum(0, dtype=torch.int32)


def _around(padded: Tensor, dy: int, dx: int, reach: int = 1) -> Tensor:
    """The neighbour at (dy, dx) of every pixel, from images that have `reach` more pixels on every side."""
    _, height, width = padded.shape
    return padded[:, reach + dy : height - reach + dy, reach + dx : width - reach + dx]
