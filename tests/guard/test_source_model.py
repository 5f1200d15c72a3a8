import copy
import math

import pytest
import torch
from torch import Tensor, nn

from spear_hf import METHODS, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.guard.source_model import ParameterDistance, source_of
from tests.builders import learner


def test_a_method_on_the_base_needs_a_source(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"no source to compare with; pass source=copy\.deepcopy"):
        source_of(METHODS["tent"](net))
    with pytest.raises(ConfigError, match="very model that the method changes"):
        source_of(METHODS["tent"](net), net)


def test_the_source_of_a_steered_model_is_its_base(net: nn.Module, images: Tensor) -> None:
    expected = net(images).detach()
    tta = learner(net)
    tta.step(images)
    assert torch.equal(source_of(tta)(images), expected)


def test_the_distance_of_rsps_is_their_root_mean_square_from_the_identity(net: nn.Module) -> None:
    tta = learner(net, SpearConfig(tau=0.0))
    distance = ParameterDistance(tta)
    assert distance() == 0.0
    with torch.no_grad():
        for p in tta.parameters():
            p.add_(0.3)
    assert distance() == pytest.approx(math.sqrt(2 * 0.3**2), rel=1e-4)


def test_the_distance_is_infinite_where_a_parameter_is_not_finite(net: nn.Module) -> None:
    tta = METHODS["tent"](copy.deepcopy(net))
    distance = ParameterDistance(tta)
    with torch.no_grad():
        next(iter(tta.parameters()))[0] = torch.nan
    assert distance() == math.inf
