"""Elastic transform and saturation equal a slow, plain computation."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from spear_hf.data.corruptions import (
    corrupt_batch,
    reencode_jpeg,
    sample_rng,
)
from spear_hf.data.corruptions.digital import elastic_transform, inverse_affine, saturate
from tests.data.corruptions.scenes import scene, scenes, through_hsv


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


def rngs(name: str, count: int, preset: str = "cifar", severity: float = 5) -> list[np.random.Generator]:
    return [sample_rng(0, preset, name, severity, index) for index in range(count)]


def test_jpeg_of_quality_85_softens_noise() -> None:
    images = torch.from_numpy(scenes("imagenet", 1))
    noisy = corrupt_batch(images, "gaussian_noise", 3, rngs("gaussian_noise", 1))
    stored = reencode_jpeg(noisy)
    assert (stored.float() - images.float()).std() < 0.85 * (noisy.float() - images.float()).std()
