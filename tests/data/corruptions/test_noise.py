"""Shot noise has the distribution of photons."""

import numpy as np
import pytest
import torch
from scipy import stats

from spear_hf.data.corruptions.noise import draw_bits, level_probabilities, poisson_table, shot_noise


@pytest.mark.parametrize("variance", [1 / 3, 1 / 60, 1 / 500])
def test_alias_tables_hold_the_poisson_distribution(variance: float) -> None:
    table = poisson_table(variance).numpy().reshape(256, 256).astype(np.int64)
    own = ((table & -256) + 2**31) / 2**32  # the share of each column that is its own level
    probability = own.copy()
    for pixel in range(256):
        probability[pixel] += np.bincount(table[pixel] & 255, 1 - own[pixel], minlength=256)
    np.testing.assert_allclose(probability / 256, level_probabilities(variance), atol=1e-6)


def test_level_probabilities_equal_scipys() -> None:
    photons, pixel = 12, 100
    counts = np.arange(photons)
    expected = np.zeros(256)
    np.add.at(expected, (counts / photons * 255).astype(int), stats.poisson.pmf(counts, photons * pixel / 255))
    expected[255] = stats.poisson.sf(photons - 1, photons * pixel / 255)
    np.testing.assert_allclose(level_probabilities(1 / photons)[pixel], expected, atol=1e-12)


def test_shot_noise_has_the_moments_of_photons(rng: np.random.Generator) -> None:
    image = torch.full((1, 128, 128, 3), 102, dtype=torch.uint8)
    (bits,) = draw_bits(rng, 128, 128, ())
    noisy = shot_noise(image, (1 / 50,), torch.from_numpy(bits[None])).double()
    assert float(noisy.mean()) == pytest.approx(102 - 0.5, abs=0.6)  # floored
    assert float(noisy.std()) == pytest.approx(255 * (0.4 / 50) ** 0.5, rel=0.02)


def test_black_stays_black_under_shot_noise(rng: np.random.Generator) -> None:
    (bits,) = draw_bits(rng, 64, 64, ())
    assert not shot_noise(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), (1 / 3,), torch.from_numpy(bits[None])).any()
