"""Each blur equals a slow, plain computation."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, signal

from spear_hf.data.corruptions.blur import (
    clipped_zoom,
    defocus_blur,
    disk,
    fourier_correlation,
    gaussian_blur,
    motion_filter,
    zoom_blur,
)
from spear_hf.data.corruptions.constants import at_severity
from tests.data.corruptions.scenes import scene


def naive_motion(image: np.ndarray, radius: float, sigma: float, angle: float) -> np.ndarray:
    """ImageMagick's loop in its 16 bits: level v is 257 v, the result loses its lower byte."""
    height, width = image.shape[:2]
    weights = [math.exp(-i * i / (2 * sigma * sigma)) for i in range(2 * math.ceil(radius) + 1)]
    out = np.zeros(image.shape)
    for i, weight in enumerate(weights):
        dx = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        rows, columns = np.arange(height) + dy, np.arange(width) + dx
        out += weight / sum(weights) * 257 * image[np.ix_(rows.clip(0, height - 1), columns.clip(0, width - 1))]
    return (np.floor(out + 0.5) // 257).astype(np.uint8)


@pytest.mark.parametrize("angle", [-130.0, -45.0, -7.3, 0.0, 31.0, 90.0])
def test_motion_blur_equals_the_naive_formula(angle: float) -> None:
    image = scene(32, 0)
    ours = motion_filter(torch.from_numpy(image[None]).float(), 8, 3, torch.tensor([angle]))[0].numpy()
    np.testing.assert_array_equal(ours, naive_motion(image, 8, 3, angle))


@pytest.mark.parametrize("factor", [1.01, 1.1, 1.23, 3, 4.5])
def test_clipped_zoom_equals_scipy(factor: float, rng: np.random.Generator) -> None:
    size = 64
    image = rng.random((size, size))
    kept = math.ceil(size / factor)
    top = (size - kept) // 2
    zoomed = ndimage.zoom(image[top : top + kept, top : top + kept], factor, order=1)
    trim = (len(zoomed) - size) // 2
    ours = clipped_zoom(torch.from_numpy(image)[None, None], factor)[0, 0].numpy()
    np.testing.assert_allclose(ours, zoomed[trim : trim + size, trim : trim + size], atol=1e-12)


def test_zoom_blur_is_the_mean_of_its_zooms() -> None:
    image = scene(64, 0)
    factors = np.arange(1, 1.31, 0.03)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    mean = (planes + sum(clipped_zoom(planes, float(factor)) for factor in factors)) / (len(factors) + 1)
    ours = zoom_blur(torch.from_numpy(image[None]), (1.31, 0.03))[0].numpy()
    assert np.abs(ours - mean[0].permute(1, 2, 0).numpy().clip(0, 255)).max() < 1.001


@pytest.mark.parametrize(("preset", "lengths"), [("imagenet", [12, 16, 11, 13, 11]), ("cifar", [7, 12, 16, 21, 26])])
def test_zoom_factors_have_the_published_float_endpoints(preset: str, lengths: list[int]) -> None:
    factors = [np.arange(1, *at_severity("zoom_blur", severity, preset)) for severity in range(1, 6)]
    assert [len(one) for one in factors] == lengths


def test_gaussian_blur_smooths_by_its_sigma() -> None:
    image = scene(64, 0)
    expected = np.floor(ndimage.gaussian_filter(image.astype(float), (2, 2, 0), mode="nearest"))
    assert np.abs(gaussian_blur(torch.from_numpy(image[None]), (2.0,))[0].numpy() - expected).max() <= 1


@pytest.mark.parametrize("constants", [(0.5, 0.6), (3, 0.1), (8, 0.5), (10, 0.5), (8.6, 0.5)])
def test_defocus_equals_a_correlation_with_its_disk(constants: tuple[float, float]) -> None:
    image, kernel = scene(64, 0), disk(*constants).double().numpy()
    expected = np.stack(
        [ndimage.correlate(plane.astype(float), kernel, mode="mirror") for plane in image.transpose(2, 0, 1)]
    )
    ours = defocus_blur(torch.from_numpy(image[None]), constants)[0].numpy().transpose(2, 0, 1)
    assert np.abs(ours - expected).max() < 1.001
    assert (ours != np.floor(expected)).mean() < 0.03  # values next to a whole level


def test_the_fourier_way_equals_the_direct_way() -> None:
    kernel, padded = disk(4, 0.5), torch.from_numpy(scene(64, 1))
    direct = np.stack([signal.correlate2d(plane, kernel.numpy(), "valid") for plane in padded.permute(2, 0, 1).numpy()])
    ours = fourier_correlation(padded, kernel).permute(2, 0, 1).numpy()
    assert np.abs(ours - direct).max() < 1.001
