"""BN-adapt's mixed statistics by hand, biased and unbiased."""

from typing import Any

import pytest
import torch
from torch import nn

from spear_hf.baselines import METHODS
from spear_hf.errors import ConfigError


@pytest.mark.parametrize(("unbiased", "variance"), [(False, 1.0), (True, 2.0)])
def test_the_batch_s_variance_is_mixed_biased_or_unbiased(unbiased: bool, variance: float) -> None:
    """Two values, 4 and 6: mean 5, variance 1 by n and 2 by n - 1; the source has mean 1 and variance 4."""
    norm: Any = nn.BatchNorm1d(2, eps=0.0)
    norm.running_mean.fill_(1.0)
    norm.running_var.fill_(4.0)
    method = METHODS["bn_adapt"](norm, alpha=0.1, unbiased=unbiased)
    found = method.step(torch.tensor([[4.0, 4.0], [6.0, 6.0]]))
    mean, var = 0.9 * 1 + 0.1 * 5, 0.9 * 4 + 0.1 * variance
    torch.testing.assert_close(found, torch.tensor([[4 - mean] * 2, [6 - mean] * 2]) / var**0.5)


def test_a_state_of_the_other_variance_is_refused(net: nn.Module) -> None:
    state = METHODS["bn_adapt"](net, unbiased=True).state_dict()
    with pytest.raises(ConfigError, match=r"another configuration \(unbiased: True, here False"):
        METHODS["bn_adapt"](nn.BatchNorm2d(3)).load_state_dict(state)
