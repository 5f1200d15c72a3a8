"""Boundaries are chosen by depth, name or module path, and by nothing that only resembles them."""

import pytest

from spear_hf.boundaries import Boundary, select_boundaries
from spear_hf.errors import BoundaryNotFoundError

BOUNDARIES = [
    Boundary(0, "stem", "maxpool", channels=64),
    Boundary(1, "stage1", "layer1.2", channels=256),
    Boundary(2, "stage2", "layer2.3", channels=512),
]


@pytest.mark.parametrize(
    ("choice", "depths"),
    [
        ("auto", [0, 1]),
        ("all", [0, 1, 2]),
        ("stem", [0]),
        ((2, 0), [0, 2]),
        (("stage1",), [1]),
        (("layer2.3", "stem"), [0, 2]),
    ],
)
def test_choices(choice, depths):
    assert [b.depth for b in select_boundaries(BOUNDARIES, choice)] == depths


def test_auto_is_the_stem_where_there_is_nothing_else():
    assert select_boundaries(BOUNDARIES[:1], "auto") == BOUNDARIES[:1]


def test_a_missing_depth_names_the_depths_there_are():
    with pytest.raises(BoundaryNotFoundError, match=r"boundaries=\(0, 7\) names depth 7, but ResNet has 0\.\.2"):
        select_boundaries(BOUNDARIES, (0, 7), model_name="ResNet")


@pytest.mark.parametrize("name", ["layer1", "Stem", "stage"])
def test_names_match_exactly(name):
    with pytest.raises(BoundaryNotFoundError, match=rf"names '{name}', but .* has stem \(maxpool\), stage1"):
        select_boundaries(BOUNDARIES, (name,))


def test_all_parts_of_a_joint_boundary_come_together():
    parts = [Boundary(1, "stage1", "stage", output_slot=(i,), part=i) for i in range(2)]
    assert select_boundaries(parts, (1,)) == parts
