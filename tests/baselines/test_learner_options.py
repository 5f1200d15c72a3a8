"""What a user may choose for every learner."""

import pytest
from torch import nn

from spear_hf import SpearConfig
from spear_hf.baselines import METHODS
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.errors import ConfigError


def test_unknown_places_and_misplaced_options_are_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match="where='head' is not known; allowed are norm, weights, rsp, buffer"):
        METHODS["tent"](net, where="head")
    with pytest.raises(ConfigError, match="not 'norm'; pass where='rsp' with it"):
        METHODS["tent"](net, config=SpearConfig())


def test_a_misspelled_option_is_refused_with_its_neighbour(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match="no option 'learing_rate'; did you mean learning_rate"):
        METHODS["tent"](net, learing_rate=0.1)


def test_none_is_the_methods_own_choice(net: nn.Module) -> None:
    options = dict.fromkeys(LearnerOptions.__annotations__)
    assert METHODS["tent"](net, **options).optimizer_config == OptimizerConfig("adam", 1e-3)
