"""Image files and arrays of every common kind as uint8 RGB, and the crop of ImageNet-C."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from spear_hf.errors import DataError

Encoded = bytes | Path | np.ndarray | Image.Image  # one image as a source holds it

SHORT_SIDE, CROP = 256, 224  # pixels

_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for a bad file


def decode_rgb(image: Encoded, locate: Callable[[], str]) -> np.ndarray:
    """(H, W, 3) uint8 RGB, upright.

    Grey is repeated three times. 16 bits are scaled to 8, because Pillow would clip them to white. Transparent images
    are put on white, as a viewer shows them.

    >>> import numpy as np
    >>> from spear_hf.data.decode import decode_rgb
    >>> decode_rgb(np.full((2, 4), 65535, np.uint16), locate=lambda: "row 17 of test.parquet").shape
    (2, 4, 3)

    Args:
        image: the bytes or path of an image file, a PIL image, or an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).
        locate: returns the place of the image, for an error message.

    Raises:
        DataError: a truncated or unreadable file, or an array that is not an image.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image, locate)
    try:
        if isinstance(image, Image.Image):
            return _from_pil(image)
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            return _from_pil(opened)
    except _UNREADABLE as error:
        raise DataError(f"{locate()} cannot be decoded ({error}); repair it, or pass skip_broken=True") from error


def crop_imagenet(image: np.ndarray) -> np.ndarray:
    """(224, 224, 3) uint8: the shorter side resized to 256 (bilinear), then the central 224 x 224 pixels.

    ImageNet-C was made so, and its constants are in pixels of such a crop. An image of 224 x 224 stays as it is.

    >>> import numpy as np
    >>> from spear_hf.data.decode import crop_imagenet
    >>> crop_imagenet(np.zeros((300, 400, 3), np.uint8)).shape
    (224, 224, 3)
    """
    height, width, _ = image.shape
    if (height, width) == (CROP, CROP):
        return image
    short = min(height, width)
    size = (width * SHORT_SIDE // short, height * SHORT_SIDE // short)
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    top, left = (round((side - CROP) / 2) for side in resized.shape[:2])
    return resized[top : top + CROP, left : left + CROP]


def _from_pil(image: Image.Image) -> np.ndarray:
    image.load()
    if image.getexif().get(ExifTags.Base.Orientation) is not None:
        image = ImageOps.exif_transpose(image)
    if image.mode in _SIXTEEN_BIT:
        return _three_channels((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(image.convert("RGB"))


def _from_array(array: np.ndarray, locate: Callable[[], str]) -> np.ndarray:
    if array.dtype == np.uint16:
        array = (array // 257).astype(np.uint8)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise DataError(
            f"{locate()} is a {array.dtype} array of shape {array.shape}; "
            "images are uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): convert it"
        )
    if array.ndim == 3 and array.shape[2] == 4:
        return _from_pil(Image.fromarray(array, "RGBA"))
    return array if array.ndim == 3 and array.shape[2] == 3 else _three_channels(array.reshape(array.shape[:2]))


def _three_channels(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, :, None], 3, axis=2)
