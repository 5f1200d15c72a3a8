"""Weather: snow, frost, fog and brightness."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.blur import clipped_zoom
from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.frost import TEXTURES, frost_textures
from spear_hf.data.corruptions.motion import motion_filter
from spear_hf.data.corruptions.pixels import to_uint8
from spear_hf.data.corruptions.plasma import plasma_fractal, plasma_size

ALMOST_BLACK = 1e-3  # grey levels; lets black, which no factor can lift, be lifted by a factor too


def draw_snow(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray, np.ndarray]:
    """(H, W) float32, standard normal flakes; () float64, the angle they fall at, degrees in [-135, -45)."""
    return rng.standard_normal((height, width), dtype=np.float32), rng.uniform(-135, -45, size=())


def snow(images: Tensor, constants: Constants, flakes: Tensor, angle: Tensor) -> Tensor:
    """The image whitened, plus flakes that are enlarged, cut off below a threshold and blurred as they fall.

    The flakes are added twice, the second time turned by 180 degrees.
    """
    mean, deviation, zoom, threshold, radius, sigma, weight = constants
    layer = clipped_zoom((flakes.double() * deviation + mean).unsqueeze(1), zoom).squeeze(1)
    layer = to_uint8(torch.where(layer < threshold, 0.0, layer).mul_(255))
    layer = motion_filter(layer.unsqueeze(3).float(), radius, sigma, angle).squeeze(3).float()
    planes = images.permute(0, 3, 1, 2).float().contiguous()
    red, green, blue = planes.unbind(1)
    grey = (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    white = torch.maximum(planes, grey.mul_(1.5).add_(127.5).unsqueeze(1))
    planes.mul_(weight).add_(white, alpha=1 - weight).add_(layer.add_(layer.flip(1, 2)).unsqueeze(1))
    return to_uint8(planes).permute(0, 2, 3, 1).contiguous()


def draw_frost(
    rng: np.random.Generator, height: int, width: int, constants: Constants
) -> tuple[np.ndarray, np.ndarray]:
    """() int64, the texture; (2,) float64 in [0, 1), the start of its crop as a share of the spare rows and columns."""
    return rng.integers(0, TEXTURES, size=()), rng.random(2)


def frost(
    images: Tensor, constants: Constants, texture: Tensor, start: Tensor, *, frost_dir: str | Path | None = None
) -> Tensor:
    """A weighted sum of the image and a crop of a texture of frost."""
    weight, texture_weight, scale = constants
    _, height, width, _ = images.shape
    textures = frost_textures(scale, height, width, frost_dir)
    crops = []
    for index, (down, across) in zip(texture.tolist(), start.tolist(), strict=True):
        rows, columns, _ = textures[index].shape
        top, left = int(down * (rows - height)), int(across * (columns - width))
        crops.append(textures[index][top : top + height, left : left + width])
    ice = torch.stack(crops).to(images.device).float()
    return to_uint8(images.float().mul_(weight).add_(ice, alpha=texture_weight))


def draw_fog(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray]:
    """(n^2 - 1,) float32 in [-1, 1): the steps of an n x n fractal, coarse to fine."""
    steps = rng.random(plasma_size(height, width) ** 2 - 1, dtype=np.float32)
    return (np.subtract(2 * steps, 1, dtype=np.float32),)


def fog(images: Tensor, constants: Constants, steps: Tensor) -> Tensor:
    """(x + c f) m / (m + c): a fractal f in [0, 1] on top, scaled back by the image's largest value m."""
    amount, decay = constants
    _, height, width, _ = images.shape
    haze = plasma_fractal(steps, plasma_size(height, width), decay)[:, :height, :width, None]
    brightest = images.amax((1, 2, 3), keepdim=True).float()
    scale = brightest / (brightest + 255 * amount)
    return to_uint8(images.float().add_(haze, alpha=255 * amount).mul_(scale))


def brightness(images: Tensor, constants: Constants) -> Tensor:
    """V + amount in HSV: hue and saturation stay, so every channel grows by the factor by which the largest does."""
    (amount,) = constants
    red, green, blue = images.unbind(3)
    largest = torch.maximum(torch.maximum(red, green), blue)
    value = torch.arange(256, dtype=torch.float64, device=images.device).clamp(min=ALMOST_BLACK)
    factor = ((value + 255 * amount).clamp(max=255) / value).float()
    factor = factor.index_select(0, largest.flatten().int()).view_as(largest).unsqueeze(3)
    return to_uint8(images.float().clamp_(min=ALMOST_BLACK).mul_(factor))
