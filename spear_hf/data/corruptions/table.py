"""CORRUPTIONS: the one table of what can be done to an image, in the order of the test-time adaptation papers."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
from torch import Tensor

from spear_hf.data.corruptions import blur, defocus, digital, elastic, glass, motion, noise, spatter, weather
from spear_hf.data.corruptions.blur import draw_nothing
from spear_hf.data.corruptions.constants import STRENGTHS, Constants, Strengths
from spear_hf.errors import DataError

Draw = Callable[[np.random.Generator, int, int, Constants], tuple[np.ndarray, ...]]
Apply = Callable[..., Tensor]


class Corruption(NamedTuple):
    """One row of the table.

    `draw(rng, height, width, constants)` takes the random numbers of one image from `rng`, as small arrays;
    `apply(images, constants, *draws)` is a pure function of (B, H, W, 3) uint8 images and those arrays, each stacked
    to (B, ...), on any device.
    """

    name: str
    group: str  # noise, blur, weather or digital; extra for the four that are no part of the benchmark's mean
    draw: Draw
    apply: Apply

    @property
    def strengths(self) -> Strengths:
        """The constants of severities 1..5 for each preset."""
        return STRENGTHS[self.name]


def by_name(*rows: Corruption) -> dict[str, Corruption]:
    """A table of rows under their names."""
    return {row.name: row for row in rows}


CORRUPTIONS: dict[str, Corruption] = by_name(
    Corruption("gaussian_noise", "noise", noise.draw_normal, noise.gaussian_noise),
    Corruption("shot_noise", "noise", noise.draw_bits, noise.shot_noise),
    Corruption("impulse_noise", "noise", noise.draw_bits, noise.impulse_noise),
    Corruption("defocus_blur", "blur", draw_nothing, defocus.defocus_blur),
    Corruption("glass_blur", "blur", glass.draw_glass, glass.glass_blur),
    Corruption("motion_blur", "blur", motion.draw_angle, motion.motion_blur),
    Corruption("zoom_blur", "blur", draw_nothing, blur.zoom_blur),
    Corruption("snow", "weather", weather.draw_snow, weather.snow),
    Corruption("frost", "weather", weather.draw_frost, weather.frost),
    Corruption("fog", "weather", weather.draw_fog, weather.fog),
    Corruption("brightness", "weather", draw_nothing, weather.brightness),
    Corruption("contrast", "digital", draw_nothing, digital.contrast),
    Corruption("elastic_transform", "digital", elastic.draw_elastic, elastic.elastic_transform),
    Corruption("pixelate", "digital", draw_nothing, digital.pixelate),
    Corruption("jpeg_compression", "digital", draw_nothing, digital.jpeg_compression),
)
EXTRA_CORRUPTIONS: dict[str, Corruption] = by_name(
    Corruption("speckle_noise", "extra", noise.draw_normal, noise.speckle_noise),
    Corruption("gaussian_blur", "extra", draw_nothing, blur.gaussian_blur),
    Corruption("spatter", "extra", spatter.draw_liquid, spatter.spatter),
    Corruption("saturate", "extra", draw_nothing, digital.saturate),
)
GROUPS = ("noise", "blur", "weather", "digital")


def find_corruption(name: str) -> Corruption:
    """The row of a name, of the 15 or the 4 extra.

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

    >>> resolve_corruptions("noise, fog")
    ['gaussian_noise', 'shot_noise', 'impulse_noise', 'fog']

    Args:
        names: one string with commas, or several strings. A name that comes twice is kept twice: a stream may revisit.

    Raises:
        DataError: an unknown name, or none at all.
    """
    words = names.split(",") if isinstance(names, str) else list(names)
    resolved = [name for word in words if word.strip() for name in expand(word.strip())]
    if not resolved:
        raise DataError(
            f"corruptions={names!r} names none; pass 'all', 'extra', a group ({', '.join(GROUPS)}) or names"
        )
    return resolved


def expand(word: str) -> list[str]:
    """The names behind one word."""
    if word == "all":
        return list(CORRUPTIONS)
    if word == "extra":
        return list(EXTRA_CORRUPTIONS)
    if word in GROUPS:
        return [row.name for row in CORRUPTIONS.values() if row.group == word]
    return [find_corruption(word).name]
