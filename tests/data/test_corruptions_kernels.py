"""Each fast kernel against the slow, plain one that it stands for."""

import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import ndimage, signal, stats

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
from spear_hf.data.corruptions.digital import elastic_transform, inverse_affine, saturate
from spear_hf.data.corruptions.filters import gaussian_filter
from spear_hf.data.corruptions.glass import draw_glass, jump_sources
from spear_hf.data.corruptions.noise import draw_bits, level_probabilities, poisson_table, shot_noise
from spear_hf.data.corruptions.spatter import UNIT, canny, chamfer_distance, equalize
from spear_hf.data.corruptions.weather import brightness, plasma_fractal
from tests.data.corruptions_scenes import scene


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


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


@pytest.mark.parametrize(("mode", "theirs"), [("nearest", "nearest"), ("reflect", "reflect"), ("mirror", "mirror")])
@pytest.mark.parametrize("sigma", [0.05, 0.7, 2.44, 19.5])
def test_gaussian_filter_equals_scipy(sigma: float, mode: str, theirs: str, rng: np.random.Generator) -> None:
    image = rng.random((48, 40))
    ours = gaussian_filter(torch.from_numpy(image)[None], sigma, 3.0, mode)[0].numpy()
    expected = ndimage.gaussian_filter(image, sigma, truncate=3.0, mode=theirs)
    np.testing.assert_allclose(ours, expected, atol=1e-12)


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


def through_hsv(image: np.ndarray, change: tuple[float, float, float]) -> np.ndarray:
    """V + a, then S b + c, by colorsys."""
    raised, factor, offset = change
    out = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255))
        out[place] = colorsys.hsv_to_rgb(h, min(s * factor + offset, 1), min(v + raised, 1))
    return out * 255


@pytest.mark.parametrize("amount", [0.05, 0.3])
def test_brightness_raises_the_value_of_hsv(amount: float) -> None:
    image = scene(32, 0)
    image[:2] = [[[0, 0, 0]], [[7, 7, 7]]]
    ours = brightness(torch.from_numpy(image[None]), (amount,))[0].numpy()
    assert np.abs(ours - through_hsv(image, (amount, 1, 0))).max() < 1.001


@pytest.mark.parametrize("constants", [(0.3, 0.0), (2.0, 0.1), (20.0, 0.2)])
def test_saturate_moves_the_saturation_of_hsv(constants: tuple[float, float]) -> None:
    image = scene(32, 0)
    image[:2] = [[[0, 0, 0]], [[7, 7, 7]]]  # grey has hue 0: it turns red
    ours = saturate(torch.from_numpy(image[None]), constants)[0].numpy()
    assert np.abs(ours - through_hsv(image, (0, *constants))).max() < 1.001


def test_inverse_affine_takes_the_moved_corners_back(rng: np.random.Generator) -> None:
    moves = torch.from_numpy(rng.uniform(-3, 3, (1, 3, 2)))
    middle, third = np.array([20, 16]), 32 // 3
    corners = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = np.concatenate([corners + moves[0].numpy(), np.ones((3, 1))], 1)
    np.testing.assert_allclose(inverse_affine(moves, 32, 40)[0].numpy() @ moved.T, corners.T, atol=1e-9)


def test_elastic_transform_equals_two_resamplings_by_scipy(rng: np.random.Generator) -> None:
    image, corners, field = scene(32, 0), rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (2, 32, 32))
    matrix = inverse_affine(torch.from_numpy(corners)[None] * 2, 32, 32)[0].numpy()
    row, column = np.mgrid[:32, :32].astype(float)
    x, y = (line[0] * column + line[1] * row + line[2] for line in matrix)
    dx, dy = (ndimage.gaussian_filter(one, 1.5, truncate=3, mode="reflect") * 5 for one in field)
    planes = [
        ndimage.map_coordinates(plane.astype(float), (y, x), order=1, mode="mirror")
        for plane in image.transpose(2, 0, 1)
    ]
    planes = [ndimage.map_coordinates(plane, (row + dy, column + dx), order=1, mode="reflect") for plane in planes]
    draws = torch.from_numpy(corners)[None].float(), torch.from_numpy(field)[None].float()
    ours = elastic_transform(torch.from_numpy(image[None]), (5, 1.5, 2), *draws)[0].numpy()
    assert np.abs(ours - np.stack(planes, 2)).max() < 1.01


def test_canny_finds_the_outline_of_a_square() -> None:
    image = torch.zeros(1, 20, 20, dtype=torch.int32)
    image[:, 6:14, 6:14] = 200
    edges = canny(image)[0]
    assert edges.any()
    assert not edges[8:12, 8:12].any()
    assert not edges[:4].any()


def test_weak_edges_need_a_strong_one() -> None:
    image = torch.zeros(1, 20, 20, dtype=torch.int32)
    image[:, :, 10:] = 30  # gradient 120: weak everywhere
    assert not canny(image).any()
    image[:, :4, 10:] = 60  # strong at the top, so that all of the line counts
    assert canny(image)[0].any(1)[2:18].all()


def test_chamfer_distance_follows_straight_and_knight_moves() -> None:
    edges = torch.zeros(1, 31, 31, dtype=torch.bool)
    edges[0, 15, 15] = True
    distance = chamfer_distance(edges, 20)[0] / UNIT
    assert distance[15, 25] == 10
    assert float(distance[17, 16]) == pytest.approx(2.1969, abs=1e-4)
    assert float(distance[20, 20]) == pytest.approx(7.0, abs=1e-3)
    assert chamfer_distance(torch.zeros_like(edges), 20).eq(20 * UNIT).all()


def test_equalize_spreads_levels_evenly() -> None:
    image = torch.tensor([[[5, 5], [6, 9]]], dtype=torch.int32)
    assert equalize(image)[0].tolist() == [[0, 0], [128, 255]]
    assert torch.equal(
        equalize(torch.full((1, 2, 2), 7, dtype=torch.int32)), torch.full((1, 2, 2), 7, dtype=torch.int32)
    )
