"""The optimizers, and how the learning rate goes with the batch."""

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.optimize import descend


@pytest.mark.parametrize(
    ("batch_size", "rate"), [(1, 1.5625e-5), (4, 3.125e-5), (16, 1.25e-4), (32, 2.5e-4), (256, 2.5e-4)]
)
def test_with_batch_norms_small_batches_take_small_steps(batch_size: int, rate: float) -> None:
    assert OptimizerConfig("sgd", 2.5e-4, scale_lr=True).rate(batch_size, True) == pytest.approx(rate)
    assert OptimizerConfig("sgd", 2.5e-4).rate(batch_size, True) == 2.5e-4


@pytest.mark.parametrize(("batch_size", "rate"), [(1, 3.125e-5), (4, 6.25e-5), (16, 2.5e-4), (64, 1e-3), (256, 4e-3)])
def test_without_batch_norms_the_step_is_in_proportion(batch_size: int, rate: float) -> None:
    assert OptimizerConfig("sgd", 1e-3, scale_lr=True).rate(batch_size, False) == pytest.approx(rate)


def test_the_first_batch_sets_the_rate_and_a_short_last_one_keeps_it(net: nn.Module, images: Tensor) -> None:
    tent = METHODS["tent"](net, optimizer="sgd", learning_rate=0.1, scale_lr=True)
    for x in (images, images[:3]):
        tent.step(x)
        assert tent.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "optimizer='lion' is not known; allowed are adam, sgd"),
        ({"learning_rate": -1.0}, r"learning_rate=-1\.0 is not allowed; give a finite number"),
        ({"momentum": 1.0}, r"momentum=1\.0 is not allowed; it is in \[0, 1\)"),
    ],
)
def test_wrong_rules_are_refused_before_anything_changes(options: dict, message: str, net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=message):
        METHODS["tent"](net, **options)
    assert not any(m._forward_hooks for m in net.modules())


def test_sgd_steps_with_momentum() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    optimizer = OptimizerConfig("sgd", 0.1).make([w])
    for _ in range(2):
        assert descend((2 * w).sum(), optimizer) is None
    assert w.item() == pytest.approx(1.0 - 0.1 * 2 - 0.1 * (0.9 * 2 + 2))
