"""Image files and arrays of every common kind as uint8 RGB, and the crop of ImageNet-C."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from spear_hf.errors import DataError

# one image as a source holds it; a str is a URL such as hf://... or zip://cat/0.png::test.zip, None an empty cell
Encoded = bytes | Path | str | np.ndarray | Image.Image | None

SHORT_SIDE, CROP = 256, 224  # pixels
DARK = 4096  # a 16-bit image whose pixels are all below is taken for one of 8 to 12 bits

_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_UPRIGHT = {  # EXIF orientation -> what turns the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_rgb(image: Encoded, locate: Callable[[], str]) -> np.ndarray:
    """(H, W, 3) uint8 RGB, upright, as a viewer shows the image.

    Grey is repeated three times. 16 bits are scaled to 8, and floats by their range: [0, 1], or [0, 255] if a value is
    above 1. Transparent images are put on white.

    >>> import numpy as np
    >>> from spear_hf.data.decode import decode_rgb
    >>> decode_rgb(np.full((2, 4), 65535, np.uint16), locate=lambda: "row 17 of test.parquet").shape
    (2, 4, 3)

    Args:
        image: the bytes, path or URL of an image file, a PIL image, or an array (H, W), (H, W, C) or (C, H, W) with
            1, 3 or 4 channels; None for an empty cell.
        locate: returns the place of the image, for an error message.

    Raises:
        DataError: an empty cell, a truncated or unreadable file, pixels of no known range, or an array that is not an
            image.
    """
    if image is None:
        raise DataError(f"{locate()} has no image (an empty cell); fill it, or pass skip_broken=True")
    try:
        if isinstance(image, np.ndarray):
            return _from_array(image)
        if isinstance(image, Image.Image):
            return _from_pil(image)
        if isinstance(image, str):
            image = _download(image)
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            return _from_pil(opened)
    except DataError as error:
        raise DataError(f"{locate()} {error}") from error
    except Exception as error:  # a damaged file can raise anything in Pillow: struct.error, ZeroDivisionError, ...
        reason = str(error) or type(error).__name__
        raise DataError(f"{locate()} cannot be decoded ({reason}); repair it, or pass skip_broken=True") from error


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
    turn = _UPRIGHT.get(_orientation(image))
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format == "PNG"):
        pixels = _from_array(np.asarray(image).clip(0, 65535).astype(np.uint16))
    elif image.mode in ("I", "F"):  # 32 bits, as in a TIFF; Pillow would clip them
        pixels = _from_array(np.asarray(image))
    else:
        if image.has_transparency_data:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        pixels = np.asarray(image.convert("RGB"))
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 without one. Other entries may be wrong: nothing else of EXIF is needed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF
            return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return 1  # EXIF that no viewer can read turns no image


def _download(url: str) -> bytes:
    import fsspec

    with fsspec.open(url, "rb") as file:
        return file.read()  # pyright: ignore[reportAttributeAccessIssue]


def _from_array(array: np.ndarray) -> np.ndarray:
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim not in (2, 3) or not array.size or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise DataError(
            f"is a {array.dtype} array of shape {array.shape}; "
            "images are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): convert it"
        )
    array = _to_uint8(array)
    if array.ndim == 3 and array.shape[2] == 4:
        return _from_pil(Image.fromarray(array, "RGBA"))
    return array if array.ndim == 3 and array.shape[2] == 3 else _three_channels(array.reshape(array.shape[:2]))


def _to_uint8(array: np.ndarray) -> np.ndarray:
    """The same pixels in [0, 255]: of uint16 by 257, of bool by 255, of floats and other integers by their range."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        if 0 < array.max() < DARK:
            raise DataError(
                f"has 16-bit pixels up to {array.max()} of 65535, nearly black: fewer bits stored in 16? Scale them"
            )
        return (array // 257).astype(np.uint8)
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise DataError(f"is an array of {array.dtype}; images are uint8, uint16 or floats: convert it")
    low, high = float(array.min()), float(array.max())
    is_float = np.issubdtype(array.dtype, np.floating)
    if not (low >= 0 and high <= 255):  # NaN is refused too
        hint = "they look normalised already" if is_float else "convert them to uint8, or 16 bits to uint16"
        raise DataError(
            f"has {array.dtype} pixels from {low:.3g} to {high:.3g}, but they may be in [0, 1] or [0, 255]; {hint}"
        )
    scale = 255.0 if is_float and high <= 1 else 1.0
    return (array * scale).round().astype(np.uint8)


def _three_channels(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, :, None], 3, axis=2)
