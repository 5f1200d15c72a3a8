"""Made textures of frost: needles of ice with the statistics of the official photographs, and none of their pixels.

Carried from each photograph: mean and deviation of the channels and how they hang together, the distribution of the
brightness, and its power by frequency. The needles lie at random.
"""

from typing import NamedTuple

import numpy as np

ROWS, COLUMNS = 384, 640
FREQUENCIES = np.geomspace(0.002, 0.45, 14)  # cycles per pixel, where the powers are given
SHARES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)  # of the pixels, where the quantiles are given
DIRECTIONS = 7
LENGTH, WIDTH = 9.0, 0.6  # of a needle, pixels
ROUNDS = 4  # of bringing power and brightness to their targets in turn


class Ice(NamedTuple):
    """What is known of one photograph."""

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
KINDS = (TURQUOISE, WHITE, WHITE, SILVER, DARK)  # the official second and third files are one photograph


def synthetic_textures() -> list[np.ndarray]:
    """Five (384, 640, 3) uint8 textures, the same at every call; about half a second."""
    return [make_texture(ice, seed) for seed, ice in enumerate(KINDS)]


def make_texture(ice: Ice, seed: int) -> np.ndarray:
    """One texture: bright needles, shaped until power and brightness fit, then coloured."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    field = needles(rng)
    for _ in range(ROUNDS):
        field = with_quantiles(with_power(field, ice.power), ice.quantiles)
    colour = with_power(rng.standard_normal(field.shape), tuple(level - 2 * i for i, level in enumerate(ice.power)))
    colour -= field * (field * colour).mean()
    colour /= colour.std()
    spread = np.arccos(ice.red_with_blue) / 2  # two mixtures this far to each side of the brightness correlate so
    angles = np.array([-spread, 0, spread])
    mixed = field[..., None] * np.cos(angles) + colour[..., None] * np.sin(angles)
    return np.clip(mixed * ice.deviation + ice.mean + 0.5, 0, 255).astype(np.uint8)


def radius_of_frequency() -> np.ndarray:
    """The frequency of each coefficient of a real Fourier transform, cycles per pixel; the constant's is set to one."""
    radius = np.hypot(np.fft.fftfreq(ROWS)[:, None], np.fft.rfftfreq(COLUMNS))
    radius[0, 0] = 1
    return radius


def needles(rng: np.random.Generator) -> np.ndarray:
    """Thin smooth strokes in several directions, dense in some places and sparse in others."""
    down, across = np.fft.fftfreq(ROWS)[:, None], np.fft.rfftfreq(COLUMNS)
    cloud = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((ROWS, COLUMNS))) / radius_of_frequency() ** 1.5)
    density = 0.01 * np.exp(0.6 * cloud / cloud.std())
    spectrum = np.zeros((ROWS, COLUMNS // 2 + 1), dtype=np.complex128)
    for angle in np.arange(DIRECTIONS) * np.pi / DIRECTIONS + rng.random():
        along, sideways = across * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - across * np.sin(angle)
        stroke = np.exp(-2 * np.pi**2 * ((LENGTH * along) ** 2 + (WIDTH * sideways) ** 2))
        spectrum += np.fft.rfft2(rng.random((ROWS, COLUMNS)) < density) * stroke
    return np.fft.irfft2(spectrum)


def with_power(field: np.ndarray, power: tuple[float, ...]) -> np.ndarray:
    """The field with its power by frequency in proportion to the targets; mean 0 and deviation 1."""
    spectrum, radius = np.fft.rfft2(field), radius_of_frequency()
    bands = np.digitize(radius, np.sqrt(FREQUENCIES[1:] * FREQUENCIES[:-1]))
    found = np.bincount(bands.ravel(), np.abs(spectrum.ravel()) ** 2) / np.bincount(bands.ravel())
    gain = 10 ** np.interp(np.log(radius), np.log(FREQUENCIES), (np.array(power) - np.log10(found)) / 2)
    gain[0, 0] = 0
    shaped = np.fft.irfft2(spectrum * gain)
    return shaped / shaped.std()


def with_quantiles(field: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """The field with each value replaced by the quantile of its rank; mean 0 and deviation 1."""
    rank = np.empty(field.size)
    rank[np.argsort(field, axis=None, kind="stable")] = (np.arange(field.size) + 0.5) / field.size
    values = np.interp(rank, SHARES, quantiles).reshape(field.shape)
    return (values - values.mean()) / values.std()
