import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, TTAMethod
from spear_hf.errors import ConfigError, InputError
from spear_hf.learning.objective import normalized_entropy, spear_loss
from tests.builders import steered

OPEN = SpearConfig.paper(alpha=0.35, tau=0.0, learning_rate=0.01, boundaries="all")


def learner(net: nn.Module, **changes: object) -> Spear:
    return Spear(steered(net, SpearConfig(**{**OPEN.to_dict(), **changes})))


def test_step_answers_before_it_learns(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    expected = tta.model(images).detach()
    assert torch.equal(tta.step(images), expected)
    assert not torch.equal(tta.model(images), expected)


def test_calling_never_learns(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    before = tta.model.snapshot()
    tta.model(images)
    torch.testing.assert_close(tta.model.snapshot(), before, rtol=0, atol=0)


def test_one_step_is_one_adam_step_on_the_objective(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    parameters = list(tta.parameters())
    loss = spear_loss(tta.model(images), tta.model.rsps(), tta.config).total
    gradients = torch.autograd.grad(loss, parameters)
    expected = [p.detach() - 0.01 * g / (g.abs() + 1e-8) for p, g in zip(parameters, gradients, strict=True)]
    tta.step(images)
    torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-4, atol=1e-6)


def test_learning_lowers_the_entropy_of_the_same_batch(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, steps=20, lambda_div=0.0, lambda_anchor=0.0)
    answer = tta.step(images)
    assert normalized_entropy(tta.model(images)).mean() < normalized_entropy(answer).mean()


def test_a_confident_batch_is_skipped_and_the_record_says_why(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, tau=1.0)
    tta.step(images)
    assert tta.last is not None
    assert (tta.last.adapted, tta.last.skipped) == (False, "confident: mean entropy below tau")
    assert tta.last.gamma_deviation == 0.0
    assert tta.last.loss is None


def test_without_the_hard_gate_a_confident_batch_is_learned_from(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, tau=1.0, hard_gate=False)
    tta.step(images)
    assert tta.last is not None
    assert tta.last.adapted


def test_the_record_holds_what_the_step_did(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    tta.step(images)
    record = tta.last
    assert record is not None
    assert (record.step, record.batch_size, record.adapted, record.skipped) == (0, 16, True, None)
    assert record.loss == pytest.approx(record.entropy_loss + record.diversity_loss + 0.0, rel=1e-5)  # pyright: ignore
    assert record.gamma_deviation > 0


def test_reset_restores_every_bit(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    first = [tta.step(images) for _ in range(3)]
    tta.reset()
    again = [tta.step(images) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_resumed_learner_goes_on_with_the_same_bits(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    tta.step(images)
    state = tta.state_dict()
    expected = [tta.step(images) for _ in range(2)]
    tta.reset()
    tta.load_state_dict(state)
    assert all(torch.equal(tta.step(images), e) for e in expected)


def test_a_state_of_another_configuration_is_refused(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    state = tta.state_dict()
    state["config"] = {**state["config"], "tau": 0.5}
    with pytest.raises(ConfigError, match=r"tau: 0\.5, here 0\.0"):
        tta.load_state_dict(state)


def test_base_weights_and_buffers_never_move(net: nn.Module, images: Tensor) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    tta = learner(net)
    for _ in range(3):
        tta.step(images)
    torch.testing.assert_close(dict(tta.unload().state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
def test_step_learns_whatever_grad_mode_the_caller_is_in(net: nn.Module, images: Tensor, grad: type) -> None:
    tta = learner(net)
    with grad():
        x = images + 0
        tta.step(x)
        tta.step(x)
    assert tta.last is not None
    assert tta.last.adapted


def test_nan_pixels_are_refused_before_anything_is_learned(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    before = tta.model.snapshot()
    images[3, 0, 0, 0] = float("nan")
    with pytest.raises(InputError, match=r"NaN or infinity in images \[3\]"):
        tta.step(images)
    torch.testing.assert_close(tta.model.snapshot(), before, rtol=0, atol=0)


@pytest.mark.parametrize("x", [torch.zeros(0, 3, 32, 32), torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(4)])
def test_batches_of_another_form_are_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(InputError, match="allowed is"):
        learner(net).step(x)


def test_a_gradient_that_is_not_finite_moves_nothing(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, lambda_anchor=1e38, lambda_div=1e38, lambda_ent=1e38)
    with torch.no_grad():
        for p in tta.parameters():
            p.add_(1e3)
    before = tta.model.snapshot()
    tta.step(images)
    assert tta.last is not None
    assert tta.last.skipped == "the gradient is not finite"
    torch.testing.assert_close(tta.model.snapshot(), before, rtol=0, atol=0)


def test_overrides_belong_to_the_learner_and_placement_does_not(net: nn.Module) -> None:
    model = steered(net)
    assert Spear(model, learning_rate=0.5).config.learning_rate == 0.5
    assert model.peft_config["default"].learning_rate != 0.5
    with pytest.raises(ConfigError, match="alpha belongs to the adapter"):
        Spear(model, alpha=0.1)


def test_stepping_while_the_adapter_is_off_is_refused(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    with tta.model.disable_adapter(), pytest.raises(ConfigError, match="not active"):
        tta.step(images)


def test_spear_is_a_tta_method(net: nn.Module) -> None:
    assert isinstance(learner(net), TTAMethod)


def test_every_third_batch_is_learned_from_and_all_are_answered(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, adapt_every=3)
    adapted = []
    for _ in range(5):
        expected = tta.model(images).detach()
        assert torch.equal(tta.step(images), expected)
        assert tta.last is not None
        adapted.append(tta.last.adapted)
    assert adapted == [True, False, False, True, False]
    assert tta.last is not None
    assert tta.last.skipped == "budget: one batch in adapt_every is learned from"


def test_a_stride_learns_from_every_other_image_under_the_statistics_of_all(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, learn_stride=2, alpha=0.5)
    parameters = list(tta.parameters())
    answer = tta.model(images)
    loss = spear_loss(answer[::2], tta.model.rsps(), tta.config).total
    gradients = torch.autograd.grad(loss, parameters)
    expected = [p.detach() - 0.01 * g / (g.abs() + 1e-8) for p, g in zip(parameters, gradients, strict=True)]
    torch.testing.assert_close(tta.step(images), answer.detach())
    torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["spear", "tent", "source", "guard"])
def test_a_step_takes_what_a_processor_gives(net: nn.Module, images: Tensor, method: str) -> None:
    from transformers import BatchFeature

    from spear_hf import Guard
    from tests.builders import made

    def fresh() -> Any:
        return Guard(learner(copy.deepcopy(net))) if method == "guard" else made(method, copy.deepcopy(net))

    expected = fresh().step(images)
    assert torch.equal(fresh().step(BatchFeature({"pixel_values": images})), expected)
    assert torch.equal(fresh().step(pixel_values=images), expected)
    for given in ({}, {"x": images, "pixel_values": images}, {"x": {"images": images}}):
        with pytest.raises(InputError, match="pixel_values"):
            fresh().step(**given)
