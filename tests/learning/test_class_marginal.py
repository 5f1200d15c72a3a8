import math

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.class_marginal import ClassMarginal
from spear_hf.learning.objective import spear_loss
from spear_hf.learning.record import NON_FINITE_LOGITS
from spear_hf.steering.rsp import RSP
from tests.builders import steered

A, B = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5])


def learner(net: nn.Module, images: int = 16, **changes: object) -> Spear:
    return Spear(steered(net, SpearConfig.paper(memory_images=images, tau=0.0, **changes)))


def test_earlier_batches_fade_with_the_images_that_came_since() -> None:
    seen = ClassMarginal(8)
    seen.add(A, 4)
    fading = math.exp(-0.5)
    torch.testing.assert_close(seen.joined(B, 4), (fading * A + B) / (1 + fading))
    torch.testing.assert_close(seen.joined(B, 4), (fading * A + B) / (1 + fading))  # joining remembers nothing


def test_the_same_stream_is_remembered_alike_at_any_batch_size() -> None:
    whole, halves = ClassMarginal(32), ClassMarginal(32)
    for mean in (A, B, A):
        whole.add(mean, 8)
        halves.add(mean, 4)
        halves.add(mean, 4)
    torch.testing.assert_close(whole.joined(B, 8), halves.joined(B, 8))


def test_with_nothing_remembered_value_and_gradient_are_those_of_equation_8() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    plain, remembered = (
        spear_loss(logits, {0: [RSP(2, 1)]}, SpearConfig.paper(), seen=seen).diversity
        for seen in (None, ClassMarginal(9))
    )
    torch.testing.assert_close(remembered, plain)
    torch.testing.assert_close(torch.autograd.grad(remembered, logits), torch.autograd.grad(plain, logits))


def test_one_image_is_pushed_from_the_classes_that_the_stream_has_had() -> None:
    seen = ClassMarginal(64)
    seen.add(A, 32)
    logits = torch.zeros(1, 3, requires_grad=True)
    losses = spear_loss(logits, {0: [RSP(2, 1)]}, SpearConfig.paper(), seen=seen)
    (gradient,) = torch.autograd.grad(losses.diversity, logits)
    assert gradient[0, 0] > 0.1  # descending lowers class 0
    assert bool((gradient[0, 1:] < 0).all())
    stream = seen.joined(torch.full((3,), 1 / 3), 1)
    torch.testing.assert_close(losses.diversity.detach(), (stream * (3 * stream).log()).sum())


def test_losses_are_finite_where_a_class_never_came() -> None:
    seen = ClassMarginal(4)
    seen.add(A, 400)
    logits = torch.tensor([[200.0, -200.0, -200.0]], requires_grad=True)
    losses = spear_loss(logits, {0: [RSP(2, 1)]}, SpearConfig.paper(), seen=seen)
    (gradient,) = torch.autograd.grad(losses.total, logits)
    assert bool(torch.isfinite(losses.total))
    assert bool(torch.isfinite(gradient).all())


def test_a_batch_that_is_not_learned_from_counts_and_a_broken_one_does_not(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, adapt_every=2)
    tta.step(images)
    before = tta.state_dict()["seen"]["mean"]
    tta.step(images + 1)  # off the budget
    assert not torch.equal(tta.state_dict()["seen"]["mean"], before)
    kept = tta.state_dict()["seen"]
    tta.model.base_model.fc.bias.data[0] = math.nan
    tta.step(images)
    assert tta.last is not None
    assert tta.last.skipped == NON_FINITE_LOGITS
    assert torch.equal(tta.state_dict()["seen"]["mean"], kept["mean"])


@pytest.mark.parametrize(("meant", "rate"), [(0, 0.01), (16, 0.01), (4, 0.02), (64, 0.005)])
def test_the_learning_rate_goes_with_the_square_root_of_the_batch(
    net: nn.Module, images: Tensor, meant: int, rate: float
) -> None:
    tta = learner(net, 0, learning_rate=0.01, learning_rate_batch=meant)
    assert len(images) == 16
    tta.step(images)
    assert tta.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_learning_rate_that_was_set_by_hand_stays(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    tta.optimizer.param_groups[0]["lr"] = 0.123
    tta.step(images)
    assert tta.optimizer.param_groups[0]["lr"] == 0.123


@pytest.mark.parametrize("field", ["memory_images", "learning_rate_batch"])
def test_a_negative_count_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}=-1 is not allowed"):
        SpearConfig(**{field: -1})  # pyright: ignore[reportArgumentType]
