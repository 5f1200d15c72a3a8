"""The published strengths of every corruption, for each of the three published image sizes.

One row per preset holds the five published severities; the comment above it says what each number means. Sources: the
generators of ImageNet-C, CIFAR-10-C and Tiny-ImageNet-C (Hendrycks and Dietterich, 2019). Level 0, the strength that
changes nothing, comes from Continuously Changing Corruptions (Press et al., 2023).
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

from spear_hf.errors import DataError

Constants = tuple[float, ...]
Levels = tuple[Constants, Constants, Constants, Constants, Constants]

SMALLEST_SIDE = 16  # pixels; in a smaller image, a blur is wider than the image


class Preset(NamedTuple):
    """One published benchmark: the image size that its constants were made for, and how its images were stored.

    >>> from spear_hf.data.corruptions import PRESETS
    >>> PRESETS["cifar"].size
    32
    """

    name: str
    size: int  # side, in pixels
    jpeg_quality: int | None  # of the JPEG in which the images were published; None: published without loss


PRESETS: dict[str, Preset] = {
    "imagenet": Preset("imagenet", 224, 85),  # ImageNet-C
    "cifar": Preset("cifar", 32, None),  # CIFAR-10-C and CIFAR-100-C
    "tiny": Preset("tiny", 64, None),  # Tiny-ImageNet-C
}


class Strengths(NamedTuple):
    """The constants of one corruption at severities 1..5, for each preset.

    >>> from spear_hf.data.corruptions.constants import STRENGTHS
    >>> STRENGTHS["contrast"].cifar
    ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))
    """

    imagenet: Levels
    cifar: Levels
    tiny: Levels
    zero: Callable[[Constants], Constants]  # the constants of severity 1 -> those of severity 0


def _scalars(*values: float) -> Levels:
    """Five severities of a corruption with a single constant."""
    first, second, third, fourth, fifth = values
    return (first,), (second,), (third,), (fourth,), (fifth,)


def _elastic(size: int, *fractions: Constants) -> Levels:
    """Elastic constants in pixels from fractions of `size`."""
    first, second, third, fourth, fifth = (tuple(size * part for part in level) for level in fractions)
    return first, second, third, fourth, fifth


def _fixed(*values: float) -> Callable[[Constants], Constants]:
    """A level 0 that does not depend on level 1."""
    return lambda _: values


STRENGTHS: dict[str, Strengths] = {
    # standard deviation, where white is 1
    "gaussian_noise": Strengths(
        _scalars(0.08, 0.12, 0.18, 0.26, 0.38),
        _scalars(0.04, 0.06, 0.08, 0.09, 0.10),
        _scalars(0.04, 0.08, 0.12, 0.15, 0.18),
        _fixed(0.0),
    ),
    # 1 / photons of a white pixel, which is the variance
    "shot_noise": Strengths(
        _scalars(1 / 60, 1 / 25, 1 / 12, 1 / 5, 1 / 3),
        _scalars(1 / 500, 1 / 250, 1 / 100, 1 / 75, 1 / 50),
        _scalars(1 / 250, 1 / 100, 1 / 50, 1 / 30, 1 / 15),
        _fixed(0.0),
    ),
    # share of values that become black or white
    "impulse_noise": Strengths(
        _scalars(0.03, 0.06, 0.09, 0.17, 0.27),
        _scalars(0.01, 0.02, 0.03, 0.05, 0.07),
        _scalars(0.01, 0.02, 0.05, 0.08, 0.14),
        _fixed(0.0),
    ),
    # radius of the disk, sigma of the blur that softens its edge; pixels
    "defocus_blur": Strengths(
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        _fixed(0.0, 0.0),
    ),
    # sigma, largest jump in pixels, rounds
    "glass_blur": Strengths(
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        _fixed(0.0, 0.0, 0.0),
    ),
    # radius, sigma; pixels
    "motion_blur": Strengths(
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        _fixed(0.0, 0.0),
    ),
    # zoom factors are np.arange(1, stop, step)
    "zoom_blur": Strengths(
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        lambda first: (1.0, first[1]),
    ),
    # flake mean, flake standard deviation, zoom, threshold, motion radius, motion sigma, weight of the image
    "snow": Strengths(
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        lambda first: (*first[:3], 1.0, *first[4:6], 1.0),
    ),
    # weight of the image, weight of the texture, scale of the texture
    "frost": Strengths(
        ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
        ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
        lambda first: (1.0, 0.0, first[2]),
    ),
    # amount, decay of the fractal's amplitude per level
    "fog": Strengths(
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        lambda first: (0.0, first[1]),
    ),
    # added to V of HSV, where white is 1
    "brightness": Strengths(
        _scalars(0.1, 0.2, 0.3, 0.4, 0.5),
        _scalars(0.05, 0.1, 0.15, 0.2, 0.3),
        _scalars(0.1, 0.2, 0.3, 0.4, 0.5),
        _fixed(0.0),
    ),
    # factor about each channel's mean
    "contrast": Strengths(
        _scalars(0.4, 0.3, 0.2, 0.1, 0.05),
        _scalars(0.75, 0.5, 0.4, 0.3, 0.15),
        _scalars(0.4, 0.3, 0.2, 0.1, 0.05),
        _fixed(1.0),
    ),
    # largest displacement before smoothing, sigma of the smoothing, largest move of an affine corner; pixels
    "elastic_transform": Strengths(
        _elastic(244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
        _elastic(32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        _elastic(64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        lambda first: (0.0, 999.0 if first[0] else 0.0, 0.0),
    ),
    # share of the side to which the image shrinks
    "pixelate": Strengths(
        _scalars(0.6, 0.5, 0.4, 0.3, 0.25),
        _scalars(0.95, 0.9, 0.85, 0.75, 0.65),
        _scalars(0.9, 0.8, 0.7, 0.6, 0.5),
        _fixed(1.0),
    ),
    # JPEG quality
    "jpeg_compression": Strengths(
        _scalars(25, 18, 15, 10, 7),
        _scalars(80, 65, 58, 50, 40),
        _scalars(65, 58, 50, 40, 25),
        _fixed(85.0),
    ),
    # standard deviation relative to the pixel
    "speckle_noise": Strengths(
        _scalars(0.15, 0.2, 0.35, 0.45, 0.6),
        _scalars(0.06, 0.1, 0.12, 0.16, 0.2),
        _scalars(0.15, 0.2, 0.25, 0.3, 0.35),
        _fixed(0.0),
    ),
    # sigma; pixels
    "gaussian_blur": Strengths(
        _scalars(1, 2, 3, 4, 6),
        _scalars(0.4, 0.6, 0.7, 0.8, 1),
        _scalars(0.5, 0.75, 1, 1.25, 1.5),
        _fixed(0.0),
    ),
    # liquid mean, standard deviation, sigma, threshold; strength of water or sigma of mud; 0: water, 1: mud
    "spatter": Strengths(
        (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        lambda first: (*first[:4], 0.0, first[5]),
    ),
    # factor and offset of S of HSV
    "saturate": Strengths(
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        _fixed(1.0, 0.0),
    ),
}


def resolve_preset(preset: str, height: int, width: int) -> Preset:
    """The preset with this name; "auto" chooses the one whose size is nearest to the image, in ratio of sides.

    The constants are in pixels, and those of ImageNet are up to 21 dB too strong for a 32 pixel image.

    >>> from spear_hf.data.corruptions.constants import resolve_preset
    >>> resolve_preset("auto", 64, 64).name, resolve_preset("auto", 28, 28).name, resolve_preset("auto", 480, 640).name
    ('tiny', 'cifar', 'imagenet')

    Raises:
        DataError: an unknown name.
    """
    if preset in PRESETS:
        return PRESETS[preset]
    if preset != "auto":
        raise DataError(f"preset={preset!r} is not one of {', '.join(PRESETS)} or 'auto'; name one of these")
    return min(PRESETS.values(), key=lambda candidate: abs(log(max(1, min(height, width)) / candidate.size)))


def at_severity(name: str, severity: float, preset: str) -> Constants:
    """The constants of a corruption at any severity in (0, 5], linear between the published levels.

    Spatter is water at some levels and mud at others; between those, the nearer level is used.

    >>> from spear_hf.data.corruptions.constants import at_severity
    >>> at_severity("contrast", 1.5, "cifar")
    (0.625,)

    Raises:
        DataError: a severity outside (0, 5].
    """
    if not 0 < severity <= 5:
        raise DataError(
            f"severity={severity:g} is outside (0, 5]; 1..5 are the published levels, fractions are between them, "
            f"and a clean image needs no corruption"
        )
    published: Levels = getattr(STRENGTHS[name], preset)
    levels = (STRENGTHS[name].zero(published[0]), *published)
    lower, share = int(severity), severity - int(severity)
    if share == 0:
        return levels[lower]
    below, above = levels[lower], levels[lower + 1]
    if name == "spatter" and below[-1] != above[-1]:
        return below if share < 0.5 else above
    return tuple(a + (b - a) * share for a, b in zip(below, above, strict=True))
