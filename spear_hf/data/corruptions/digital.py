"""Digital corruptions: contrast, elastic transform, pixelate, JPEG and saturation."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.filters import gaussian_filter, to_uint8


def contrast(images: Tensor, constants: Constants) -> Tensor:
    """(x - mean) c + mean, where the mean is over one channel of one image.

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import contrast
    >>> contrast(torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 2, 1), (0.5,)).flatten().tolist()
    [50, 150]
    """
    (factor,) = constants
    _, height, width, _ = images.shape
    mean = images.sum((1, 2), keepdim=True, dtype=torch.int64).double() / (height * width)
    return to_uint8(images.float().mul_(factor).add_((mean * (1 - factor)).float()))


def draw_elastic(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[np.ndarray, ...]:
    """(3, 2) float32, moves (x, y) of three points, and (2, H, W) float32, displacements (x, y); all in [-1, 1).

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.digital import draw_elastic
    >>> [array.shape for array in draw_elastic(np.random.default_rng(0), 16, 20, (1, 1, 1))]
    [(3, 2), (2, 16, 20)]
    """
    corners = 2 * rng.random((3, 2), dtype=np.float32) - 1
    field = 2 * rng.random((2, height, width), dtype=np.float32) - 1
    return corners, field


def elastic_transform(images: Tensor, constants: Constants, corners: Tensor, field: Tensor) -> Tensor:
    """Images after a random affine map and a smooth random displacement of every pixel.

    Both are bilinear. The affine map mirrors the image at the centres of its border pixels, the displacement at their
    outer edges, as published.

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import elastic_transform
    >>> grey = torch.full((1, 16, 16, 3), 100, dtype=torch.uint8)
    >>> elastic_transform(grey, (0, 0, 1), torch.zeros(1, 3, 2), torch.zeros(1, 2, 16, 16)).shape
    torch.Size([1, 16, 16, 3])
    """
    amplitude, sigma, corner_move = constants
    _, height, width, _ = images.shape
    column = torch.arange(width, device=images.device, dtype=torch.float32)
    row = torch.arange(height, device=images.device, dtype=torch.float32)[:, None]
    matrix = inverse_affine(corners.double() * corner_move, height, width).float()[..., None, None]
    x = matrix[:, 0, 0] * column + matrix[:, 0, 1] * row + matrix[:, 0, 2]
    y = matrix[:, 1, 0] * column + matrix[:, 1, 1] * row + matrix[:, 1, 2]
    planes = _sample(images.permute(0, 3, 1, 2).float().contiguous(), x, y, align_corners=True)
    if amplitude:
        moves = gaussian_filter(field.flatten(0, 1), sigma, truncate=3.0, mode="reflect").mul_(amplitude)
        dx, dy = moves.view_as(field).unbind(1)
        planes = _sample(planes, dx.add_(column), dy.add_(row), align_corners=False)
    return to_uint8(planes).permute(0, 2, 3, 1).contiguous()


def inverse_affine(moves: Tensor, height: int, width: int) -> Tensor:
    """(B, 2, 3): maps a pixel of the result to its source, for the affine map that moves three corners of a square.

    The square is centred in the image. Half of its side is t, a third of the shorter side of the image. The three
    corners are middle + (t, t), (t, -t) and (-t, -t).

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import inverse_affine
    >>> inverse_affine(torch.zeros(1, 3, 2, dtype=torch.float64), 16, 16)[0].abs().tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]

    Args:
        moves: (B, 3, 2) float64, the (x, y) by which each corner moves, in pixels.
        height: of the image, in pixels.
        width: of the image, in pixels.
    """
    third = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float64, device=moves.device)
    corner = middle + torch.tensor([third, -third], dtype=torch.float64, device=moves.device) + moves[:, 1]
    across = (moves[:, 1] - moves[:, 2]) / (2 * third)  # what the map adds to one step in x
    down = (moves[:, 0] - moves[:, 1]) / (2 * third)
    a, b, c, d = 1 + across[:, 0], down[:, 0], across[:, 1], 1 + down[:, 1]
    inverse = torch.stack([d, -b, -c, a], 1).div_((a * d - b * c)[:, None]).view(-1, 2, 2)
    start = middle + torch.tensor([third, -third], device=moves.device)
    offset = start - (inverse * corner[:, None]).sum(2)
    return torch.cat([inverse, offset[..., None]], 2)


def _sample(planes: Tensor, x: Tensor, y: Tensor, *, align_corners: bool) -> Tensor:
    """(B, C, H, W) read at pixel coordinates x, y (B, H, W), bilinear.

    Args:
        planes: (B, C, H, W) float.
        x: columns.
        y: rows.
        align_corners: mirror at the centres of the border pixels (True) or at their outer edges (False).
    """
    b, _, height, width = planes.shape
    grid = torch.empty(b, height, width, 2, device=planes.device)
    for axis, (place, size) in enumerate(((x, width), (y, height))):
        span, shift = (size - 1, 0) if align_corners else (size, 1)
        grid[..., axis] = (place * (2 / span)).add_(shift / span - 1)
    return functional.grid_sample(planes, grid, "bilinear", "reflection", align_corners)


def pixelate(images: Tensor, constants: Constants) -> Tensor:
    """Images that are shrunk to a share of their sides and enlarged again, both by averaging over boxes.

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import pixelate
    >>> pixelate(torch.arange(8, dtype=torch.uint8).view(1, 1, 8, 1).expand(1, 2, 8, 3), (0.5,))[0, 0, :, 0].tolist()
    [1, 1, 3, 3, 5, 5, 7, 7]
    """
    (share,) = constants
    _, height, width, _ = images.shape
    small = int(width * share), int(height * share)

    def shrink_and_grow(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)

    return _through_pillow(images, shrink_and_grow)


def jpeg_compression(images: Tensor, constants: Constants) -> Tensor:
    """Images after JPEG of a quality, as Pillow writes it (4:2:0).

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import jpeg_compression
    >>> jpeg_compression(torch.zeros(1, 16, 16, 3, dtype=torch.uint8), (25,)).shape
    torch.Size([1, 16, 16, 3])
    """
    (quality,) = constants
    return reencode_jpeg(images, round(quality))


def reencode_jpeg(images: Tensor, quality: int = 85) -> Tensor:
    """Images after being written as JPEG and read back. The images of ImageNet-C were stored so, at quality 85.

    >>> import torch
    >>> from spear_hf.data.corruptions import reencode_jpeg
    >>> reencode_jpeg(torch.zeros(2, 16, 16, 3, dtype=torch.uint8)).shape
    torch.Size([2, 16, 16, 3])

    Args:
        images: (B, H, W, 3) uint8, on any device.
        quality: Pillow's, 1..95.
    """

    def write_and_read(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file, formats=["JPEG"])

    return _through_pillow(images, write_and_read)


def _through_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Images that are changed one by one, on the CPU."""
    result = torch.empty(images.shape, dtype=torch.uint8)
    for image, place in zip(images.cpu().numpy(), result.numpy(), strict=True):
        place[:] = np.asarray(change(Image.fromarray(image)))
    return result.to(images.device)


def saturate(images: Tensor, constants: Constants) -> Tensor:
    """Images whose saturation S of HSV becomes S factor + offset; V and hue stay.

    A channel is V (1 - S k), where the hue fixes k in [0, 1]: only S changes. Grey has hue 0, so an offset tints grey
    red.

    >>> import torch
    >>> from spear_hf.data.corruptions.digital import saturate
    >>> saturate(torch.tensor([[[[200, 100, 100]]]], dtype=torch.uint8), (2.0, 0.0)).tolist()
    [[[[200, 0, 0]]]]
    """
    factor, offset = constants
    levels = images.double() / 255  # in float32, many values that are whole levels at a factor of 2 round down wrongly
    value, least = levels.amax(3, keepdim=True), levels.amin(3, keepdim=True)
    chroma = value - least
    k = (value - levels) / chroma
    k = torch.where(chroma == 0, torch.tensor([0.0, 1.0, 1.0], dtype=k.dtype, device=k.device), k)
    saturation = (chroma / value).nan_to_num_(0.0).mul_(factor).add_(offset).clamp_(0, 1)
    return to_uint8((value * (1 - k * saturation)).mul_(255))
