"""Draws and outputs do not change; a change to either needs a new STREAM_VERSION.

Write the figures again with: python -m tests.data.corruptions.test_golden
"""

import json
from hashlib import sha256
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from spear_hf.data.corruptions import PRESETS, sample_rng
from spear_hf.data.corruptions.apply import apply_draws
from spear_hf.data.corruptions.constants import at_severity
from tests.data.corruptions.official import ROWS, official_draws
from tests.data.corruptions.scenes import psnr, scenes

FIGURES = Path(__file__).with_name("golden.json")


KEYS = list(product(PRESETS, ROWS, range(1, 6)))
# Two severities of these have nearly the same strength, or their draws vary more.
OVERLAPPING = {"elastic_transform", "fog", "frost", "glass_blur", "spatter"}


LARGE = ("imagenet", "tiny")
SMALL_AND_WHOLE = [  # the large images at one severity, and, slowly, at all
    ("cifar", (1, 2, 3, 4, 5)),
    ("imagenet", (5,)),
    ("tiny", (3,)),
    *(pytest.param(preset, (1, 2, 3, 4, 5), marks=pytest.mark.slow) for preset in LARGE),
]
SAMPLES = {"imagenet": 4, "tiny": 16, "cifar": 32}  # images that a mean is taken over


def our_draws(preset: str, name: str, severity: int, count: int) -> list[tuple[np.ndarray, ...]]:
    """The draws of samples 0..count-1 of seed 0."""
    side, constants = PRESETS[preset].size, at_severity(name, severity, preset)
    rngs = [sample_rng(0, preset, name, severity, index) for index in range(count)]
    return [ROWS[name].draw(rng, side, side, constants) for rng in rngs]


def corrupted(preset: str, name: str, severity: int, draws: list[tuple[np.ndarray, ...]]) -> np.ndarray:
    """The scenes under these draws."""
    clean = torch.from_numpy(scenes(preset, len(draws)))
    return apply_draws(ROWS[name], clean, at_severity(name, severity, preset), draws).numpy()


def hash_of(draws: list[tuple[np.ndarray, ...]]) -> str:
    """16 hexadecimal digits for the bits of all arrays."""
    arrays = [array.astype(array.dtype.newbyteorder("<")) for one in draws for array in one]
    return sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def quarters(images: np.ndarray) -> np.ndarray:
    """(B, 4): the mean grey level of each quarter of each image."""
    b, height, width, _ = images.shape
    return images.reshape(b, 2, height // 2, 2, width // 2, 3).mean((2, 4, 5)).reshape(b, 4)


@pytest.fixture(scope="module")
def figures() -> dict[str, dict]:
    return json.loads(FIGURES.read_text())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ROWS)
def test_draws_are_the_same_bits_as_ever(name: str, preset: str, figures: dict[str, dict]) -> None:
    for severity in range(1, 6):
        assert hash_of(our_draws(preset, name, severity, 2)) == figures[f"{preset}/{name}/{severity}"]["draws"]


@pytest.mark.parametrize(("preset", "severities"), SMALL_AND_WHOLE)
@pytest.mark.parametrize("name", ROWS)
def test_outputs_are_the_same_as_ever(
    name: str, preset: str, severities: tuple[int, ...], figures: dict[str, dict]
) -> None:
    for severity in severities:
        figure = figures[f"{preset}/{name}/{severity}"]
        images = corrupted(preset, name, severity, our_draws(preset, name, severity, 2))
        np.testing.assert_allclose(quarters(images), figure["quarters"], atol=0.06)
        np.testing.assert_allclose(psnr(images, scenes(preset, 2)), figure["psnr"], atol=0.06)


@pytest.mark.parametrize("preset", ["cifar", *(pytest.param(preset, marks=pytest.mark.slow) for preset in LARGE)])
@pytest.mark.parametrize("name", ROWS)
def test_our_draws_are_as_strong_as_the_official_ones(name: str, preset: str, figures: dict[str, dict]) -> None:
    count = SAMPLES[preset]
    for severity in range(1, 6):
        mean, deviation = figures[f"{preset}/{name}/{severity}"]["official_psnr"]
        images = corrupted(preset, name, severity, our_draws(preset, name, severity, count))
        assert abs(psnr(images, scenes(preset, count)).mean() - mean) <= tolerance(deviation, count)


@pytest.mark.parametrize("name", sorted(set(ROWS) - OVERLAPPING))
def test_constants_of_two_severities_on_would_fail(name: str, figures: dict[str, dict]) -> None:
    for preset, severity in product(PRESETS, (1, 2, 3)):
        near, far = (figures[f"{preset}/{name}/{s}"]["official_psnr"] for s in (severity, severity + 2))
        assert abs(near[0] - far[0]) > tolerance(near[1], SAMPLES[preset])


def tolerance(deviation: float, count: int) -> float:
    """dB; five standard errors of a mean of `count` and of the official mean, which had four times as many."""
    return 0.03 + 5 * deviation * (1.25 / count) ** 0.5


def write_figures() -> None:
    """Write the figures of this code and, for the strength, those of the official draws."""
    lines = []
    for preset, name, severity in KEYS:
        count, constants = 4 * SAMPLES[preset], at_severity(name, severity, preset)
        draws = our_draws(preset, name, severity, 2)
        images = corrupted(preset, name, severity, draws)
        official = [
            official_draws(name, image, constants, severity, index) for index, image in enumerate(scenes(preset, count))
        ]
        strength = psnr(corrupted(preset, name, severity, official), scenes(preset, count))
        figure = {
            "draws": hash_of(draws),
            "quarters": quarters(images).round(2).tolist(),
            "psnr": psnr(images, scenes(preset, 2)).round(2).tolist(),
            "official_psnr": [round(float(strength.mean()), 3), round(within_scenes(strength), 3)],
        }
        lines.append(f"{json.dumps(f'{preset}/{name}/{severity}')}: {json.dumps(figure)}")
    FIGURES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def within_scenes(strength: np.ndarray) -> float:
    """The standard deviation of PSNR between draws on one scene; the images alternate between two scenes."""
    return float(strength.reshape(-1, 2).std(0, ddof=1).mean())


if __name__ == "__main__":
    write_figures()
