"""Spatter: drops of water or mud."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.edges import UNIT, canny, chamfer_distance, correlate, equalize
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8

MUD = (63.0, 42.0, 20.0)  # RGB
WATER = (175.0, 238.0, 238.0)
BOX = [[1, 1, 1], [1, 1, 1], [1, 1, 1]]
EMBOSS = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
GLITTER = 20  # pixels; how far from its edge a drop glitters


def draw_liquid(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W) float32, standard normal."""
    return (rng.standard_normal((height, width), dtype=np.float32),)


def spatter(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """Drops where smoothed noise passes a threshold: water glitters along their edges, mud covers."""
    mean, deviation, sigma, threshold, strength, is_mud = constants
    liquid = gaussian_filter(normal.double().mul_(deviation).add_(mean), sigma)
    if is_mud:
        return add_mud(images, liquid > threshold, strength)
    return add_water(images, torch.where(liquid < threshold, 0.0, liquid), strength)


def add_mud(images: Tensor, covered: Tensor, sigma: float) -> Tensor:
    """Brown where the smoothed mask (B, H, W) is near one."""
    mask = gaussian_filter(covered.float(), sigma)
    mask = torch.where(mask < 0.8, 0.0, mask).unsqueeze(3)
    return to_uint8(images * (1 - mask) + mask * torch.tensor(MUD, device=images.device))


def add_water(images: Tensor, liquid: Tensor, strength: float) -> Tensor:
    """Pale turquoise light on the drops (B, H, W), in a relief of the distance to their edges.

    An image on which no drop fell stays as it is, where the published code divides by zero.
    """
    depth = (liquid * 255).int() & 255
    distance = chamfer_distance(canny(depth), GLITTER)
    level = correlate(distance, BOX, "mirror").div(9 * UNIT, rounding_mode="floor")
    relief = correlate(equalize(level), EMBOSS, "mirror").clamp_(0, 255)
    relief = correlate(relief, BOX, "mirror").add_(4).div(9, rounding_mode="floor")
    light = (depth * relief).float()
    light = light / light.amax((1, 2), keepdim=True).clamp(min=1) * strength
    return to_uint8(images + light.unsqueeze(3) * torch.tensor(WATER, device=images.device))
