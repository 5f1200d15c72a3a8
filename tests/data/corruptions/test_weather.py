"""Fog's clouds and brightness equal a slow, plain computation."""

import numpy as np
import pytest
import torch

from spear_hf.data.corruptions.weather import brightness, plasma_fractal
from tests.data.corruptions.scenes import scene, through_hsv


def naive_plasma(steps: np.ndarray, size: int, decay: float) -> np.ndarray:
    """Diamond-square pixel by pixel on a torus."""
    field, stride, wibble, steps = np.zeros((size, size)), size, 100.0, iter(steps)
    while stride >= 2:
        half = stride // 2
        squares = [(y, x) for y in range(half, size, stride) for x in range(half, size, stride)]
        across = [(y, x) for y in range(0, size, stride) for x in range(half, size, stride)]
        down = [(y, x) for y in range(half, size, stride) for x in range(0, size, stride)]
        corners = [(-half, -half), (-half, half), (half, -half), (half, half)]
        edges = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for places, near in ((squares, corners), (across, edges), (down, edges)):
            for y, x in places:
                mean = sum(field[(y + dy) % size, (x + dx) % size] for dy, dx in near) / 4
                field[y, x] = mean + wibble * wibble * next(steps)
        stride, wibble = half, wibble / decay
    field -= field.min()
    return field / field.max()


def test_plasma_equals_the_naive_loop(rng: np.random.Generator) -> None:
    steps = rng.uniform(-1, 1, 16 * 16 - 1)
    ours = plasma_fractal(torch.from_numpy(steps)[None], 16, 1.75)[0].numpy()
    np.testing.assert_allclose(ours, naive_plasma(steps, 16, 1.75), atol=1e-9)


@pytest.mark.parametrize("amount", [0.05, 0.3])
def test_brightness_raises_the_value_of_hsv(amount: float) -> None:
    image = scene(32, 0)
    image[:2] = [[[0, 0, 0]], [[7, 7, 7]]]
    ours = brightness(torch.from_numpy(image[None]), (amount,))[0].numpy()
    assert np.abs(ours - through_hsv(image, (amount, 1, 0))).max() < 1.001
