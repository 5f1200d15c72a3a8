"""The image analysis behind water drops."""

import pytest
import torch

from spear_hf.data.corruptions.spatter import UNIT, canny, chamfer_distance, equalize


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
