"""What a user or a rule says about a model is held against the model."""

import pytest
import torch
from torch import nn

from spear_hf.boundaries import Boundary, boundary_rule, find_boundaries, verify_boundaries
from spear_hf.boundaries.find import RULES
from spear_hf.errors import BoundaryNotFiredError, BoundaryNotFoundError, NoBoundariesError, UnsupportedOutputError


class Net(nn.Module):
    """Two paths to the logits; `twice` runs twice, `never` not at all, `dead` for nothing, `pair` returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        self.never, self.dead = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.pair, self.branch, self.head = Pair(), nn.Conv2d(8, 8, 1), nn.Linear(8, 10)

    def forward(self, x):
        x = self.twice(self.twice(self.stem(x)))
        self.dead(x)
        x, _ = self.pair(x)
        return self.head((x + self.branch(x)).mean((2, 3)))


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, "not a tensor"


@pytest.fixture
def net():
    return Net()


def test_probe_fills_in_channels_and_axis(net):
    assert verify_boundaries(net, [Boundary(0, "stem", "stem")])[0] == Boundary(0, "stem", "stem", channels=8)


def test_a_tensor_inside_a_tuple_is_reached_by_its_slot(net):
    found = verify_boundaries(net, [Boundary(1, "pair", "pair", output_slot=(0,))])
    assert found[0].channels == 8


def test_boundaries_come_back_by_depth(net):
    given = [Boundary(1, "pair", "pair", output_slot=(0,)), Boundary(0, "stem", "stem")]
    assert [b.depth for b in verify_boundaries(net, given)] == [0, 1]


def test_unknown_module_is_an_error_that_names_close_ones(net):
    with pytest.raises(BoundaryNotFoundError, match=r"no such module.*close: stem"):
        verify_boundaries(net, [Boundary(0, "stem", "stemm")])


@pytest.mark.parametrize(("module", "times"), [("twice", 2), ("never", 0)])
def test_a_module_must_fire_exactly_once(net, module, times):
    with pytest.raises(BoundaryNotFiredError, match=f"fires {times} times"):
        verify_boundaries(net, [Boundary(0, "stem", module)])


def test_another_channel_count_is_an_error(net):
    with pytest.raises(UnsupportedOutputError, match=r"says 7 channels on axis 1, but stem has .* \(2, 8, "):
        verify_boundaries(net, [Boundary(0, "stem", "stem", channels=7)])


def test_a_missing_slot_lists_the_slots_there_are(net):
    with pytest.raises(UnsupportedOutputError, match=r"slots that do: \(0,\)"):
        verify_boundaries(net, [Boundary(0, "pair", "pair")])


def test_a_module_beside_the_logits_is_an_error(net):
    with pytest.raises(NoBoundariesError, match="do not depend on 'dead'"):
        verify_boundaries(net, [Boundary(0, "dead", "dead")])


def test_boundaries_of_one_depth_that_follow_each_other_are_an_error_that_names_the_depth() -> None:
    net = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(4)))
    given = [Boundary(1, f"block{i}", str(i), part=i) for i in range(4)]
    with pytest.raises(NoBoundariesError, match=r"'block0' \(0\) beside the 3 other boundaries of depth 1; .* own"):
        verify_boundaries(net, given, torch.randn(1, 3, 4, 4))


def test_a_module_behind_zero_weights_is_an_error(net):
    nn.init.zeros_(net.branch.weight)
    given = [Boundary(0, "branch_in", "branch", where="in"), Boundary(1, "branch", "branch")]
    with pytest.raises(NoBoundariesError, match="does not move the logits"):
        verify_boundaries(net, given)


def test_a_branch_may_be_steered_on_request_and_is_no_chain(net):
    given = [Boundary(0, "branch", "branch")]
    assert verify_boundaries(net, given)[0].channels == 8
    with pytest.raises(NoBoundariesError, match="depends on the image by a way around branch"):
        verify_boundaries(net, given, strict=True)


def test_given_inputs_are_used(net):
    with pytest.raises(NoBoundariesError, match="answered none"):
        verify_boundaries(net, [Boundary(0, "stem", "stem")], torch.zeros(2, 5, 8, 8))
    assert verify_boundaries(net, [Boundary(0, "stem", "stem")], {"x": torch.zeros(2, 3, 8, 8)})


@pytest.fixture
def no_rules():
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.parametrize("key", [Net, "Net"])
def test_a_rule_is_asked_before_the_search(net, no_rules, key):
    boundary_rule(key)(lambda model, num_groups: [Boundary(0, "stem", "stem")])
    assert find_boundaries(net) == [Boundary(0, "stem", "stem", channels=8)]


def test_a_wrong_rule_is_an_error(net, no_rules):
    boundary_rule(Net)(lambda model, num_groups: [Boundary(0, "branch", "branch")])
    with pytest.raises(NoBoundariesError, match="a way around branch"):
        find_boundaries(net)
