"""How far a step goes: the optimizers, the scaling with the batch, and when no step is taken."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.descent import descend
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.errors import ConfigError


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


def test_no_step_down_what_is_not_finite() -> None:
    w, unused = nn.Parameter(torch.tensor([0.0])), nn.Parameter(torch.tensor([5.0]))
    optimizer = OptimizerConfig("adam", 0.1).make([w, unused])
    assert descend(w.sum() * float("nan"), optimizer) == "the loss is not finite"
    assert descend(w.abs().sqrt().sum(), optimizer) == "the gradient is not finite"
    assert (w.item(), unused.item(), w.grad, optimizer.state) == (0.0, 5.0, None, {})
    assert descend(w.sum(), optimizer) is None
    assert unused.item() == 5.0


def test_tent_is_one_adam_step_down_the_mean_entropy(net: nn.Module, images: Tensor) -> None:
    tent = METHODS["tent"](net, learning_rate=0.01)
    p = tent.where.forward(images).softmax(1)
    loss = -(p * p.log()).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(tent.parameters()))
    expected = [w.detach() - 0.01 * g / (g.abs() + 1e-8) for w, g in zip(tent.parameters(), gradients, strict=True)]
    tent.step(images)
    assert tent.last.loss == pytest.approx(float(loss.detach()))
    torch.testing.assert_close([w.detach() for w in tent.parameters()], expected, rtol=1e-4, atol=1e-6)


def test_a_misspelled_option_is_refused_with_its_neighbour(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match="no option 'learing_rate'; did you mean learning_rate"):
        METHODS["tent"](net, learing_rate=0.1)


def test_the_signature_names_every_option_and_none_is_the_methods_own(net: nn.Module) -> None:
    names = list(inspect.signature(METHODS["tent"]).parameters)
    assert names[0] == "model"
    assert {"where", "config", "learning_rate", "scale_lr", "accelerator"} <= set(names)
    assert METHODS["tent"](net, **dict.fromkeys(names[1:])).rule == OptimizerConfig("adam", 1e-3)
