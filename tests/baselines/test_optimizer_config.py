"""The optimizers, and how the learning rate goes with the batch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.optimize import descend

CNN = {1: 1.5625e-5, 4: 3.125e-5, 16: 1.25e-4, 32: 2.5e-4, 64: 2.5e-4, 256: 2.5e-4}
TRANSFORMER = {1: 3.125e-5, 4: 6.25e-5, 16: 2.5e-4, 64: 1e-3, 256: 4e-3}
"""Batch size -> SAR's and DeYO's rate by their scripts: 2.5e-4 / 64 * B * 2 below 32 images, 1e-3 / 64 * B for ViT; one
image twice as much."""


@pytest.mark.parametrize("name", ["sar", "deyo"])
@pytest.mark.parametrize(
    ("norm", "rates"), [(nn.BatchNorm2d(4), CNN), (nn.GroupNorm(2, 4), CNN), (nn.LayerNorm([4, 1, 1]), TRANSFORMER)]
)
def test_the_rate_of_a_batch_is_that_of_the_authors(name: str, norm: nn.Module, rates: dict[int, float]) -> None:
    """A network without batch norms is no transformer: group norms have the rates of batch norms."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1), norm, nn.Flatten(), nn.Linear(4, 3))
    method: Any = METHODS[name](net, skip=(), threshold=1.0)
    for size, rate in rates.items():
        if size > 1:
            method.reset()
            method.step(torch.randn(size, 3, 2, 2))
            if name == "sar":
                assert method.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        assert method.optimizer_config.rate(size, method.adapted.is_transformer) == pytest.approx(rate)


def test_only_sar_and_deyo_double_the_rate_of_one_image() -> None:
    assert OptimizerConfig("sgd", 1e-3, scale_lr=True).rate(1, is_transformer=True) == pytest.approx(1e-3 / 64)
    assert OptimizerConfig("sgd", 1e-3).rate(1, is_transformer=True) == 1e-3


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
