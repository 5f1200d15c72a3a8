"""Digital corruptions: contrast, pixelate, JPEG and saturation."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants
from spear_hf.data.corruptions.pixels import to_uint8


def contrast(images: Tensor, constants: Constants) -> Tensor:
    """(x - mean) c + mean, the mean over one channel of one image."""
    (factor,) = constants
    _, height, width, _ = images.shape
    mean = images.sum((1, 2), keepdim=True, dtype=torch.int64).double() / (height * width)
    return to_uint8(images.float().mul_(factor).add_((mean * (1 - factor)).float()))


def pixelate(images: Tensor, constants: Constants) -> Tensor:
    """Each image shrunk to a share of its sides and grown back, both by averaging over boxes."""
    (share,) = constants
    _, height, width, _ = images.shape
    small = int(width * share), int(height * share)

    def shrink_and_grow(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)

    return through_pillow(images, shrink_and_grow)


def jpeg_compression(images: Tensor, constants: Constants) -> Tensor:
    """Each image after JPEG of a quality, as Pillow writes it (4:2:0)."""
    (quality,) = constants
    return reencode_jpeg(images, round(quality))


def reencode_jpeg(images: Tensor, quality: int = 85) -> Tensor:
    """The images written as JPEG and read back: what the published ImageNet-C went through after its corruption.

    Args:
        images: (B, H, W, 3) uint8, on any device.
        quality: Pillow's, 1..95.
    """

    def write_and_read(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file, formats=["JPEG"])

    return through_pillow(images, write_and_read)


def through_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """The images changed one by one, on the CPU."""
    result = torch.empty(images.shape, dtype=torch.uint8)
    for image, place in zip(images.cpu().numpy(), result.numpy(), strict=True):
        place[:] = np.asarray(change(Image.fromarray(image)))
    return result.to(images.device)


def saturate(images: Tensor, constants: Constants) -> Tensor:
    """S factor + offset in HSV; V and hue stay.

    A channel is V (1 - S k), where k in [0, 1] is fixed by the hue: only S changes. Grey has hue 0, so that an offset
    tints it red.
    """
    factor, offset = constants
    levels = images.double() / 255  # float32 would floor many of the whole levels that a factor of 2 gives wrongly
    value, least = levels.amax(3, keepdim=True), levels.amin(3, keepdim=True)
    chroma = value - least
    k = (value - levels) / chroma
    k = torch.where(chroma == 0, torch.tensor([0.0, 1.0, 1.0], dtype=k.dtype, device=k.device), k)
    saturation = (chroma / value).nan_to_num_(0.0).mul_(factor).add_(offset).clamp_(0, 1)
    return to_uint8((value * (1 - k * saturation)).mul_(255))
