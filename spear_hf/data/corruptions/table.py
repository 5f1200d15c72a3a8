"""CORRUPTIONS: the table of all corruptions, in the order of the test-time adaptation papers."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
from torch import Tensor

from spear_hf.data.corruptions import blur, digital, glass, noise, spatter, weather
from spear_hf.data.corruptions.constants import Constants
from spear_hf.errors import DataError

DrawFunction = Callable[[np.random.Generator, int, int, Constants], tuple[np.ndarray, ...]]
ApplyFunction = Callable[..., Tensor]


class Corruption(NamedTuple):
    """One row of the table.

    `draw(rng, height, width, constants)` returns the random numbers of one image as small arrays.
    `apply(images, constants, *draws)` is a pure function of (B, H, W, 3) uint8 images and those arrays, each stacked
    to (B, ...), on any device.

    >>> from spear_hf.data.corruptions import CORRUPTIONS
    >>> CORRUPTIONS["fog"].group
    'weather'
    """

    name: str
    group: str  # noise, blur, weather or digital; extra for the four that do not count in the mean of the benchmark
    draw: DrawFunction
    apply: ApplyFunction


def _by_name(*rows: Corruption) -> dict[str, Corruption]:
    return {row.name: row for row in rows}


def _draw_nothing(rng: np.random.Generator, height: int, width: int, constants: Constants) -> tuple[()]:
    """A corruption without random numbers."""
    return ()


CORRUPTIONS: dict[str, Corruption] = _by_name(
    Corruption("gaussian_noise", "noise", noise.draw_normal, noise.gaussian_noise),
    Corruption("shot_noise", "noise", noise.draw_bits, noise.shot_noise),
    Corruption("impulse_noise", "noise", noise.draw_bits, noise.impulse_noise),
    Corruption("defocus_blur", "blur", _draw_nothing, blur.defocus_blur),
    Corruption("glass_blur", "blur", glass.draw_glass, glass.glass_blur),
    Corruption("motion_blur", "blur", blur.draw_angle, blur.motion_blur),
    Corruption("zoom_blur", "blur", _draw_nothing, blur.zoom_blur),
    Corruption("snow", "weather", weather.draw_snow, weather.snow),
    Corruption("frost", "weather", weather.draw_frost, weather.frost),
    Corruption("fog", "weather", weather.draw_fog, weather.fog),
    Corruption("brightness", "weather", _draw_nothing, weather.brightness),
    Corruption("contrast", "digital", _draw_nothing, digital.contrast),
    Corruption("elastic_transform", "digital", digital.draw_elastic, digital.elastic_transform),
    Corruption("pixelate", "digital", _draw_nothing, digital.pixelate),
    Corruption("jpeg_compression", "digital", _draw_nothing, digital.jpeg_compression),
)
EXTRA_CORRUPTIONS: dict[str, Corruption] = _by_name(
    Corruption("speckle_noise", "extra", noise.draw_normal, noise.speckle_noise),
    Corruption("gaussian_blur", "extra", _draw_nothing, blur.gaussian_blur),
    Corruption("spatter", "extra", spatter.draw_liquid, spatter.spatter),
    Corruption("saturate", "extra", _draw_nothing, digital.saturate),
)
GROUPS = ("noise", "blur", "weather", "digital")


def find_corruption(name: str) -> Corruption:
    """The row of a name, among the 15 and the 4 extra.

    >>> from spear_hf.data.corruptions.table import find_corruption
    >>> find_corruption("gausian_noise")
    Traceback (most recent call last):
    spear_hf.errors.DataError: corruption 'gausian_noise' is not one of the 19 known; did you mean gaussian_noise ...

    Raises:
        DataError: an unknown name.
    """
    rows = CORRUPTIONS | EXTRA_CORRUPTIONS
    if name in rows:
        return rows[name]
    near = get_close_matches(str(name), rows, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(rows)}"
    raise DataError(f"corruption {name!r} is not one of the {len(rows)} known; {hint}")


def resolve_corruptions(names: str | Iterable[str]) -> list[str]:
    """Names of corruptions from "all" (the 15), "extra" (the other 4), a group, a name, or several of these.

    >>> from spear_hf.data.corruptions import resolve_corruptions
    >>> resolve_corruptions("noise, fog")
    ['gaussian_noise', 'shot_noise', 'impulse_noise', 'fog']

    Args:
        names: one string with commas, or several strings. A repeated name is kept, because a stream may revisit it.

    Raises:
        DataError: an unknown name, or no name.
    """
    words = names.split(",") if isinstance(names, str) else list(names)
    resolved = [name for word in words if word.strip() for name in _expand(word.strip())]
    if not resolved:
        raise DataError(
            f"corruptions={names!r} names none; pass 'all', 'extra', a group ({', '.join(GROUPS)}) or names"
        )
    return resolved


def _expand(word: str) -> list[str]:
    if word == "all":
        return list(CORRUPTIONS)
    if word == "extra":
        return list(EXTRA_CORRUPTIONS)
    if word in GROUPS:
        return [row.name for row in CORRUPTIONS.values() if row.group == word]
    return [find_corruption(word).name]
