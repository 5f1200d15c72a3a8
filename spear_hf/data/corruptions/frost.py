"""Frost textures: the published photographs, or synthetic ones where the photographs are not available.

The synthetic textures show needles of ice at random places. They share statistics with the photographs, but no pixels:
mean and standard deviation of the channels, correlation of red and blue, distribution of the brightness, and power by
frequency.
"""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spear_hf.errors import DataError

TEXTURES = 5  # the published code has six files and draws from the first five; the second and third are identical
FROST_VARIABLE = "SPEAR_FROST_DIR"
OFFICIAL = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}
ROWS, COLUMNS = 384, 640
FREQUENCIES = np.geomspace(0.002, 0.45, 14)  # cycles per pixel, at which the powers are given
SHARES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)  # of the pixels, at which the quantiles are given
DIRECTIONS = 7
LENGTH, WIDTH = 9.0, 0.6  # of a needle, in pixels
ROUNDS = 4  # in each, first the power, then the brightness is set to its target


class Ice(NamedTuple):
    """Statistics of one photograph.

    >>> from spear_hf.data.corruptions.frost import KINDS
    >>> KINDS[1].mean
    (200.8, 205.4, 214.5)
    """

    mean: tuple[float, float, float]  # RGB, grey levels
    deviation: tuple[float, float, float]
    red_with_blue: float  # their correlation
    power: tuple[float, ...]  # log10 at FREQUENCIES
    quantiles: tuple[float, ...]  # of the standardised brightness at SHARES


TURQUOISE = Ice(
    (77.7, 149.1, 165.7),
    (26.9, 16.5, 15.3),
    0.574,
    (6.83, 5.96, 5.6, 5.07, 4.68, 4.19, 3.66, 3.2, 2.82, 2.61, 2.47, 2.34, 2.1, 1.49),
    (-2.16, -1.88, -1.49, -0.73, -0.1, 0.64, 1.81, 2.59, 3.5),
)
WHITE = Ice(
    (200.8, 205.4, 214.5),
    (21.4, 22.1, 22.6),
    0.990,
    (7.05, 4.99, 5.25, 4.75, 4.55, 4.31, 4.02, 3.75, 3.56, 3.2, 2.82, 2.53, 2.17, 1.48),
    (-4.59, -2.98, -1.86, -0.54, 0.16, 0.7, 1.34, 1.74, 1.99),
)
SILVER = Ice(
    (137.6, 152.8, 165.2),
    (28.5, 28.5, 29.9),
    0.991,
    (7.2, 6.16, 5.26, 4.94, 4.33, 4.25, 4.11, 3.92, 3.71, 3.45, 3.18, 2.93, 2.63, 1.96),
    (-3.48, -2.42, -1.66, -0.62, 0.0, 0.59, 1.62, 2.83, 3.43),
)
DARK = Ice(
    (112.4, 123.4, 134.8),
    (44.4, 43.3, 41.7),
    0.998,
    (7.6, 6.22, 5.7, 5.44, 5.09, 5.18, 4.86, 4.5, 4.14, 3.79, 3.44, 3.06, 2.69, 2.3),
    (-2.05, -1.82, -1.47, -0.74, -0.1, 0.63, 1.85, 2.65, 3.03),
)
KINDS = (TURQUOISE, WHITE, WHITE, SILVER, DARK)  # the second and third published files are one photograph


def frost_provenance(frost_dir: str | Path | None = None) -> str:
    """ "frost(official)" or "frost(synthetic)": which textures are used.

    >>> from spear_hf.data.corruptions import frost_provenance
    >>> frost_provenance("textures")
    'frost(official)'
    """
    return "frost(official)" if _resolve_frost_dir(frost_dir) else "frost(synthetic)"


def frost_textures(scale: float, height: int, width: int, frost_dir: str | Path | None = None) -> list[Tensor]:
    """Five (h, w, 3) uint8 textures at `scale`, or at a larger scale if they would not cover the image.

    The published textures are refused if they are not the published ones; this folder does not exist:

    >>> from spear_hf.data.corruptions.frost import frost_textures
    >>> frost_textures(0.2, 32, 32, frost_dir="no/folder")
    Traceback (most recent call last):
    spear_hf.errors.DataError: frost_dir='no/folder' has no frost1.png; ...

    Args:
        scale: 1 is the size of the stored textures.
        height: of the image, in pixels.
        width: of the image, in pixels.
        frost_dir: folder of the published textures; default: SPEAR_FROST_DIR, or synthetic textures.

    Raises:
        DataError: a folder without the five published files, or with other files of the same names.
    """
    folder = _resolve_frost_dir(frost_dir)
    smallest = min(min(t.shape[0] / height, t.shape[1] / width) for t in _originals(folder))
    needed = 1.01 / smallest  # at least one pixel larger than the image
    return _scaled_textures(folder, max(scale, needed))


def _resolve_frost_dir(frost_dir: str | Path | None) -> str | None:
    return str(frost_dir or "") or os.environ.get(FROST_VARIABLE) or None


@lru_cache(maxsize=16)
def _scaled_textures(folder: str | None, scale: float) -> list[Tensor]:
    return [torch.from_numpy(resize_texture(texture, scale)) for texture in _originals(folder)]


@lru_cache(maxsize=2)
def _originals(folder: str | None) -> list[np.ndarray]:
    """The five textures at scale 1, each (h, w, 3) uint8; read or made only once."""
    return _synthetic_textures() if folder is None else [_read_official(Path(folder), name) for name in OFFICIAL]


def _read_official(folder: Path, name: str) -> np.ndarray:
    """(h, w, 3) uint8: one published texture, after a check of its hash.

    Raises:
        DataError: no such file, or a file with another content.
    """
    path = folder / name
    if not path.is_file():
        raise DataError(
            f"frost_dir={str(folder)!r} has no {name}; it needs {', '.join(OFFICIAL)} of the ImageNet-C code; "
            f"unset frost_dir and {FROST_VARIABLE} to use the synthetic textures"
        )
    found = sha256(path.read_bytes()).hexdigest()
    if found != OFFICIAL[name]:
        raise DataError(
            f"{name} in frost_dir={str(folder)!r} has sha256 {found[:8]}..., but the official file has "
            f"{OFFICIAL[name][:8]}...; copy the official file again, or unset frost_dir and {FROST_VARIABLE}"
        )
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def resize_texture(texture: np.ndarray, scale: float) -> np.ndarray:
    """The texture at `scale`: bilinear between pixel centres, without smoothing first (as OpenCV resizes).

    >>> import numpy as np
    >>> from spear_hf.data.corruptions.frost import resize_texture
    >>> resize_texture(np.zeros((50, 75, 3), np.uint8), 0.2).shape
    (10, 15, 3)
    """
    if scale == 1:
        return texture
    levels = texture.astype(np.float32)
    for axis in (0, 1):
        size = levels.shape[axis]
        place = ((np.arange(round(size * scale)) + 0.5) / scale - 0.5).clip(0, size - 1)
        low = place.astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        share = np.expand_dims((place - low).astype(np.float32), 1 - axis)[..., None]
        levels = levels.take(low, axis) * (1 - share) + levels.take(high, axis) * share
    return np.round(levels).astype(np.uint8)


def _synthetic_textures() -> list[np.ndarray]:
    """Five (384, 640, 3) uint8 textures, the same at every call; takes about a second."""
    return [_make_texture(ice, seed) for seed, ice in enumerate(KINDS)]


def _make_texture(ice: Ice, seed: int) -> np.ndarray:
    """(384, 640, 3) uint8: bright needles with the power, the brightness and the colours of a photograph."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    field = _needles(rng)
    for _ in range(ROUNDS):
        field = _with_quantiles(_with_power(field, ice.power), ice.quantiles)
    colour = _with_power(rng.standard_normal(field.shape), tuple(level - 2 * i for i, level in enumerate(ice.power)))
    colour -= field * (field * colour).mean()
    colour /= colour.std()
    # red and blue mix brightness and colour at the angles -spread and +spread; that gives the wanted correlation
    spread = np.arccos(ice.red_with_blue) / 2
    angles = np.array([-spread, 0, spread])
    mixed = field[..., None] * np.cos(angles) + colour[..., None] * np.sin(angles)
    return np.clip(mixed * ice.deviation + ice.mean + 0.5, 0, 255).astype(np.uint8)


@lru_cache(maxsize=1)
def _frequencies() -> tuple[np.ndarray, np.ndarray]:
    """The frequency of each coefficient of a real Fourier transform, in cycles per pixel (1 for the constant), and
    the number of its band around FREQUENCIES."""
    frequency = np.hypot(np.fft.fftfreq(ROWS)[:, None], np.fft.rfftfreq(COLUMNS))
    frequency[0, 0] = 1
    return frequency, np.digitize(frequency, np.sqrt(FREQUENCIES[1:] * FREQUENCIES[:-1])).ravel()


def _needles(rng: np.random.Generator) -> np.ndarray:
    """Thin smooth strokes in several directions, dense in some places and sparse in others."""
    down, across = np.fft.fftfreq(ROWS)[:, None], np.fft.rfftfreq(COLUMNS)
    cloud = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((ROWS, COLUMNS))) / _frequencies()[0] ** 1.5)
    density = 0.01 * np.exp(0.6 * cloud / cloud.std())
    spectrum = np.zeros((ROWS, COLUMNS // 2 + 1), dtype=np.complex128)
    for angle in np.arange(DIRECTIONS) * np.pi / DIRECTIONS + rng.random():
        along, sideways = across * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - across * np.sin(angle)
        stroke = np.exp(-2 * np.pi**2 * ((LENGTH * along) ** 2 + (WIDTH * sideways) ** 2))
        spectrum += np.fft.rfft2(rng.random((ROWS, COLUMNS)) < density) * stroke
    return np.fft.irfft2(spectrum)


def _with_power(field: np.ndarray, power: tuple[float, ...]) -> np.ndarray:
    """The field with power by frequency proportional to the targets; mean 0 and standard deviation 1."""
    spectrum, (frequency, bands) = np.fft.rfft2(field), _frequencies()
    found = np.bincount(bands, np.abs(spectrum.ravel()) ** 2) / np.bincount(bands)
    gain = 10 ** np.interp(np.log(frequency), np.log(FREQUENCIES), (np.array(power) - np.log10(found)) / 2)
    gain[0, 0] = 0
    shaped = np.fft.irfft2(spectrum * gain)
    return shaped / shaped.std()


def _with_quantiles(field: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """The field with each value replaced by the quantile of its rank; mean 0 and standard deviation 1."""
    rank = np.empty(field.size)
    rank[np.argsort(field, axis=None)] = (np.arange(field.size) + 0.5) / field.size  # no ties, so any sort will do
    values = np.interp(rank, SHARES, quantiles).reshape(field.shape)
    return (values - values.mean()) / values.std()
