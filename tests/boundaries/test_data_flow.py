"""Path counts in small graphs whose answer is known."""

import pytest
import torch
from torch import nn

from spear_hf.boundaries.graph import DataFlow, edge_of, topological


@pytest.fixture
def image():
    return torch.ones(3, requires_grad=True)


def test_every_tensor_of_a_line_is_a_cut(image):
    middle = image * 2
    logits = middle + 1
    flow = DataFlow(logits, image)
    assert all(flow.is_cut(edge_of(t)) for t in (image, middle, logits))


def test_a_branch_beside_a_skip_is_no_cut_but_their_sum_is(image):
    x = image * 2
    branch = x.exp()
    total = x + branch
    flow = DataFlow(total.sum(), image)
    assert flow.is_cut(edge_of(x))
    assert flow.is_cut(edge_of(total))
    assert flow.is_used(edge_of(branch))
    assert not flow.is_cut(edge_of(branch))


def test_one_output_of_a_split_is_no_cut_when_the_other_is_used(image):
    a, b = (image * 2).split([1, 2])
    flow = DataFlow(a.sum() + b.sum(), image)
    assert not flow.is_cut(edge_of(a))
    assert DataFlow(a.sum(), image).is_cut(edge_of(a))


def test_an_in_place_operation_makes_another_tensor(image):
    x = image * 2
    before = edge_of(x)
    x.relu_()
    assert edge_of(x) != before


def test_two_to_the_two_hundred_paths_are_counted(image):
    x = image
    for _ in range(200):
        x = x + x.exp()
    flow = DataFlow(x.sum(), image)
    assert flow.is_cut(edge_of(x))
    assert flow.total == 2**200 % (2**127 - 1)


def test_a_deep_graph_needs_no_recursion(image):
    x = image
    for _ in range(2_000):
        x = x + 1
    assert len(topological([edge_of(x)])) == 2_001


def test_what_goes_around_a_tensor_is_named(image):
    kept = image * 2
    x = kept.exp()
    y = x + 1
    flow = DataFlow((y + kept).sum(), image)
    assert flow.around(edge_of(x)) == {edge_of(kept), edge_of(image)}
    assert flow.around(edge_of(kept)) == set()


def test_logits_that_ignore_the_image_have_no_cut(image):
    other = torch.ones(3, requires_grad=True)
    assert not DataFlow(other.sum(), image).is_cut(edge_of(other))


def test_the_graph_is_that_of_a_real_block(image):
    block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)).requires_grad_(False)
    hidden = block(image)
    assert DataFlow(hidden.sum(), image).is_cut(edge_of(hidden))
