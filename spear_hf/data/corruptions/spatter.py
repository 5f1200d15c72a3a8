"""Spatter: drops of water or mud."""

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.pixels import to_uint8
from spear_hf.errors import DataError

MUD = (63, 42, 20)  # RGB


def draw_liquid(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(H, W) float32, standard normal."""
    return (rng.standard_normal((height, width), dtype=np.float32),)


def spatter(images: Tensor, constants: Constants, normal: Tensor) -> Tensor:
    """Drops where smoothed noise passes a threshold: water glitters at their edges, mud covers."""
    mean, deviation, sigma, threshold, strength, is_mud = constants
    liquid = gaussian_filter(normal * deviation + mean, sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    return add_mud(images, liquid > threshold, strength) if is_mud else add_water(images, liquid, strength)


def add_mud(images: Tensor, covered: Tensor, sigma: float) -> Tensor:
    """Brown where the smoothed mask (B, H, W) is near one."""
    mask = gaussian_filter(covered.float(), sigma)
    mask = torch.where(mask < 0.8, 0.0, mask).unsqueeze(3)
    return to_uint8(images * (1 - mask) + mask * torch.tensor(MUD, device=images.device))


def add_water(images: Tensor, liquid: Tensor, strength: float) -> Tensor:
    raise DataError("spatter with water is not there yet")
