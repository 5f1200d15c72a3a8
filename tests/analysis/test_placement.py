import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.analysis import placed, placements
from spear_hf.errors import ConfigError
from tests.analysis.helpers import hooks_of


def test_the_five_placements_by_hand() -> None:
    assert placements(3) == {"stem": (0,), "stem+1": (0, 1), "early": (0, 1, 2), "deep": (3,), "all": (0, 1, 2, 3)}
    assert placements(4)["early"] == (0, 1, 2)
    assert placements(4)["deep"] == (3, 4)


@pytest.mark.parametrize("last", range(3, 13))
def test_early_and_deep_are_all_and_no_two_placements_are_one(last: int) -> None:
    found = placements(last)
    assert found["early"] + found["deep"] == found["all"]
    assert len(set(found.values())) == 5


def test_too_few_boundaries_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"boundaries 0\.\.2 are too few for five placements, at least 0\.\.3"):
        placements(2)


def test_placed_holds_one_adapter_for_each_and_leaves_the_base_as_it_was(net: nn.Module, images: Tensor) -> None:
    before = net(images)
    with placed(net, SpearConfig(alpha=0.5)) as model:
        assert {name: tuple(model.rsps(name)) for name in model.peft_config} == placements(3)
    assert hooks_of(net) == 0
    assert torch.equal(net(images), before)
