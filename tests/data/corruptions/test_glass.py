"""Glass blur equals the published loop over pixels."""

import numpy as np
import pytest
import torch

from spear_hf.data.corruptions.glass import draw_glass, jump_sources


def naive_jumps(image: np.ndarray, jumps: np.ndarray, reach: int) -> np.ndarray:
    """The published loop over pixels, with the assignment that its swap of views comes down to."""
    image, (height, width) = image.copy(), image.shape[:2]
    steps = iter(jumps.reshape(-1, 2))
    for h in range(height - reach, reach, -1):
        for w in range(width - reach, reach, -1):
            dx, dy = next(steps)
            image[h, w] = image[h + dy, w + dx]
    return image


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_sources_equal_the_naive_loop(reach: int, rng: np.random.Generator) -> None:
    height, width = 40, 33
    (jumps,) = draw_glass(rng, height, width, (1.0, reach, 1))
    places = np.arange(height * width).reshape(height, width)
    sources = jump_sources(torch.from_numpy(jumps), height, width, reach)
    np.testing.assert_array_equal(sources.view(height, width).numpy(), naive_jumps(places, jumps[0], reach))


def test_the_published_swap_is_an_assignment(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    before = image.copy()
    image[1, 1], image[2, 3] = image[2, 3], image[1, 1]
    np.testing.assert_array_equal(image[1, 1], before[2, 3])
    np.testing.assert_array_equal(image[2, 3], before[2, 3])
