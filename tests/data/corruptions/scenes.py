"""Synthetic images to corrupt: blocks of colour of several sizes, computed with integers, the same on every machine."""

import colorsys
from functools import lru_cache

import numpy as np

from spear_hf.data.corruptions import PRESETS


def scene(side: int, seed: int) -> np.ndarray:
    """(side, side, 3) uint8 with large, middle and small structure; `side` is a multiple of 32."""
    return _scene(side, seed).copy()


@lru_cache
def _scene(side: int, seed: int) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(key=seed))
    total = np.zeros((side, side, 3), dtype=np.int64)
    for block, weight in ((32, 4), (8, 3), (4, 2), (1, 1)):
        cells = rng.integers(0, 256, size=(side // block, side // block, 3))
        total += weight * np.kron(cells, np.ones((block, block, 1), dtype=np.int64))
    return np.clip((total // 10 - 128) * 2 + 128, 0, 255).astype(np.uint8)


def scenes(preset: str, count: int) -> np.ndarray:
    """(count, side, side, 3) uint8 at the size of a preset, alternating between two scenes."""
    return np.stack([scene(PRESETS[preset].size, index % 2) for index in range(count)])


def psnr(images: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """(B,) dB; a stronger corruption has less."""
    return 10 * np.log10(255**2 / ((images.astype(np.float64) - clean) ** 2).mean((1, 2, 3)).clip(1e-9))


def through_hsv(image: np.ndarray, change: tuple[float, float, float]) -> np.ndarray:
    """V + a, then S b + c, by colorsys."""
    raised, factor, offset = change
    out = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255))
        out[place] = colorsys.hsv_to_rgb(h, min(s * factor + offset, 1), min(v + raised, 1))
    return out * 255
