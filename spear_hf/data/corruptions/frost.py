"""Textures of frost: the official photographs where they are at hand, and our own made ones where they are not."""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spear_hf.data.corruptions.ice import synthetic_textures
from spear_hf.errors import DataError

TEXTURES = 5  # the official code has six files and draws from the first five; the second and third are identical
FROST_VARIABLE = "SPEAR_FROST_DIR"
OFFICIAL = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}


def frost_provenance(frost_dir: str | Path | None = None) -> str:
    """ "frost(official)" or "frost(synthetic)": which textures an image with frost carries."""
    return "frost(official)" if resolve_frost_dir(frost_dir) else "frost(synthetic)"


def resolve_frost_dir(frost_dir: str | Path | None) -> str | None:
    """The folder asked for, else the one SPEAR_FROST_DIR names, else None."""
    return str(frost_dir or "") or os.environ.get(FROST_VARIABLE) or None


def frost_textures(scale: float, height: int, width: int, frost_dir: str | Path | None = None) -> list[Tensor]:
    """Five (h, w, 3) uint8 textures at `scale`, larger where they would not cover an image of this size.

    Raises:
        DataError: a folder without the five official files, or with other files of their names.
    """
    folder = resolve_frost_dir(frost_dir)
    smallest = min(min(t.shape[0] / height, t.shape[1] / width) for t in originals(folder))
    needed = 1.01 / smallest  # one pixel to spare at the least
    return scaled_textures(folder, max(scale, needed))


@lru_cache(maxsize=16)
def scaled_textures(folder: str | None, scale: float) -> list[Tensor]:
    """The five textures at one scale."""
    return [torch.from_numpy(resize(texture, scale)) for texture in originals(folder)]


@lru_cache(maxsize=2)
def originals(folder: str | None) -> list[np.ndarray]:
    """The five textures as they are stored or made, each (h, w, 3) uint8; read or made once."""
    return synthetic_textures() if folder is None else [read_official(Path(folder), name) for name in OFFICIAL]


def read_official(folder: Path, name: str) -> np.ndarray:
    """One official texture, after checking that it is the official one."""
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


def resize(texture: np.ndarray, scale: float) -> np.ndarray:
    """Bilinear between pixel centres, without smoothing before (as OpenCV resizes)."""
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
