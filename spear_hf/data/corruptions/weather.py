"""Weather: snow, frost, fog and brightness."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.blur import clipped_zoom, motion_filter
from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import to_uint8
from spear_hf.data.corruptions.frost import TEXTURES, frost_textures

ALMOST_BLACK = 1e-3  # grey levels; brightness multiplies, and a factor cannot brighten a value of 0


def draw_snow(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray, np.ndarray]:
    """(H, W) float32, standard normal flakes; () float64, the angle of their fall, degrees in [-135, -45).

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.weather import draw_snow
    >>> [array.shape for array in draw_snow(np.random.default_rng(0), 16, 20, ())]
    [(16, 20), ()]
    """
    return rng.standard_normal((height, width), dtype=np.float32), rng.uniform(-135, -45, size=())


def snow(images: Tensor, constants: Constants, flakes: Tensor, angle: Tensor) -> Tensor:
    """Whitened images plus flakes, which are enlarged, cut off below a threshold and blurred along their fall.

    The flakes are added twice, the second time turned by 180 degrees.

    >>> import torch
    >>> from spear_hf.data.corruptions.weather import snow
    >>> grey, no_flakes = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8), torch.full((1, 16, 16), -9.0)
    >>> snow(grey, (0.1, 0.2, 1, 0.6, 8, 3, 0.8), no_flakes, torch.tensor([-90.0])).unique().tolist()
    [135]
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
    """() int64, the number of the texture; (2,) float64 in [0, 1), where its crop starts.

    The start is a share of the rows and columns by which the texture is larger than the image.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.weather import draw_frost
    >>> [array.shape for array in map(np.asarray, draw_frost(np.random.default_rng(0), 16, 20, ()))]
    [(), (2,)]
    """
    return rng.integers(0, TEXTURES, size=()), rng.random(2)


def frost(
    images: Tensor, constants: Constants, texture: Tensor, start: Tensor, *, frost_dir: str | Path | None = None
) -> Tensor:
    """A weighted sum of each image and a crop of a frost texture.

    The published textures are read from `frost_dir`, and refused if they are not the published ones:

    >>> import torch
    >>> from spear_hf.data.corruptions.weather import frost
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> frost(grey, (1, 0.4, 1), torch.tensor([0]), torch.rand(1, 2), frost_dir="no/folder")
    Traceback (most recent call last):
    spear_hf.errors.DataError: frost_dir='no/folder' has no frost1.png; ...
    """
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
    """(n^2 - 1,) float32 in [-1, 1): the steps of an n x n fractal, coarse to fine.

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.weather import draw_fog
    >>> draw_fog(np.random.default_rng(0), 16, 20, ())[0].shape
    (1023,)
    """
    steps = rng.random(plasma_size(height, width) ** 2 - 1, dtype=np.float32)
    return (np.subtract(2 * steps, 1, dtype=np.float32),)


def fog(images: Tensor, constants: Constants, steps: Tensor) -> Tensor:
    """(x + c f) m / (m + c): a fractal f in [0, 1] is added, and the result is scaled by the image's largest value m.

    >>> import torch
    >>> from spear_hf.data.corruptions.weather import fog
    >>> fog(torch.full((1, 16, 16, 3), 100, dtype=torch.uint8), (1.5, 2), torch.rand(1, 255)).shape
    torch.Size([1, 16, 16, 3])
    """
    amount, decay = constants
    _, height, width, _ = images.shape
    haze = plasma_fractal(steps, plasma_size(height, width), decay)[:, :height, :width, None]
    brightest = images.amax((1, 2, 3), keepdim=True).float()
    scale = brightest / (brightest + 255 * amount)
    return to_uint8(images.float().add_(haze, alpha=255 * amount).mul_(scale))


def plasma_size(height: int, width: int) -> int:
    """The smallest power of two that covers an image.

    >>> from spear_hf.data.corruptions.weather import plasma_size
    >>> plasma_size(224, 32)
    256
    """
    return 1 << (max(height, width) - 1).bit_length()


def plasma_fractal(steps: Tensor, size: int, decay: float) -> Tensor:
    """(B, n, n) float32 in [0, 1]: fractal clouds by the diamond-square algorithm on a torus, darkest 0, brightest 1.

    Every level fills the centre of each square with the mean of its corners, then the middle of each edge with the
    mean of its neighbours, and adds a random step to each. The amplitude a^2 starts at 100^2; `decay` divides a after
    each level.

    >>> import torch
    >>> from spear_hf.data.corruptions.weather import plasma_fractal
    >>> plasma_fractal(torch.tensor([[1.0, 0.0, -1.0]]), size=2, decay=2.0)
    tensor([[[0.3333, 0.6667],
             [0.0000, 1.0000]]])

    Args:
        steps: (B, n^2 - 1) in [-1, 1); for each level: centres, middles of horizontal edges, of vertical edges.
        size: n, a power of two.
        decay: larger is smoother.
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


def brightness(images: Tensor, constants: Constants) -> Tensor:
    """Images whose V of HSV grows by `amount`; hue and saturation stay, so each pixel's channels grow by one factor.

    >>> import torch
    >>> from spear_hf.data.corruptions.weather import brightness
    >>> brightness(torch.tensor([[[[100, 50, 0]]]], dtype=torch.uint8), (0.2,)).tolist()
    [[[[151, 75, 0]]]]
    """
    (amount,) = constants
    red, green, blue = images.unbind(3)
    largest = torch.maximum(torch.maximum(red, green), blue)
    value = torch.arange(256, dtype=torch.float64, device=images.device).clamp(min=ALMOST_BLACK)
    factor = ((value + 255 * amount).clamp(max=255) / value).float()
    factor = factor.index_select(0, largest.flatten().int()).view_as(largest).unsqueeze(3)
    return to_uint8(images.float().clamp_(min=ALMOST_BLACK).mul_(factor))
