"""The promises of a SpearModel, over every backbone family that a user meets first."""

import copy

import pytest
import timm
import torch
from torch import Tensor

from spear_hf import Spear, SpearConfig, SpearModel, get_spear_model
from spear_hf.utils.batch import logits_of
from tests.families import ALL_FAMILIES, steered_family


@pytest.fixture(scope="module", params=ALL_FAMILIES)
def drawn(request: pytest.FixtureRequest) -> tuple[SpearModel, Tensor, Tensor]:
    """A randomly initialised model with adapters "plain" and "learning", two images, and the base's logits for them."""
    model, x, source = steered_family(request.param)
    model.add_adapter("learning", SpearConfig(learning_rate=0.01, alpha_images=0))
    return model, x, source


@pytest.fixture
def family(drawn: tuple[SpearModel, Tensor, Tensor]) -> tuple[SpearModel, Tensor, Tensor]:
    """A copy of them."""
    return copy.deepcopy(drawn[0]), drawn[1], drawn[2]


def test_identity_is_bitwise_in_every_family(family: tuple[SpearModel, Tensor, Tensor]) -> None:
    model, x, source = family
    with torch.no_grad():
        assert torch.equal(logits_of(model(x)), source)
        with model.disable_adapter():
            assert torch.equal(logits_of(model(x)), source)


@pytest.mark.slow
def test_identity_is_bitwise_in_bf16_too(family: tuple[SpearModel, Tensor, Tensor]) -> None:
    model, x = family[0].to(torch.bfloat16), family[1].bfloat16()
    with torch.no_grad():
        steered = logits_of(model(x))
        assert torch.equal(logits_of(model.unload()(x)), steered)


def test_what_was_adapted_comes_back_exactly(family: tuple[SpearModel, Tensor, Tensor]) -> None:
    model, x, source = family
    base, before = model.base_model, {k: v.clone() for k, v in model.base_model.state_dict().items()}
    model.set_adapter("learning")
    tta = Spear(model)
    for _ in range(2):
        tta.step(x)
    assert tta.stream.deviations()[0] > 0
    assert tta.unload() is base
    torch.testing.assert_close(dict(base.state_dict()), before, rtol=0, atol=0)
    assert all(p.requires_grad for p in base.parameters())
    with torch.no_grad():
        assert torch.equal(logits_of(base(x)), source)


@pytest.mark.parametrize(
    ("name", "side"), [("test_resnet", 32), ("test_vit", 160), ("test_convnext", 32), ("test_efficientnet", 32)]
)
def test_gradient_checkpointing_changes_no_gradient(name: str, side: int) -> None:
    torch.manual_seed(0)
    model, x = timm.create_model(name, num_classes=10).eval(), torch.randn(1, 3, side, side)
    steered = get_spear_model(model, SpearConfig(alpha=0.0, boundaries="all"))
    plain = torch.autograd.grad(steered(x).square().sum(), list(steered.adapter_parameters()))
    model.set_grad_checkpointing(True)
    again = torch.autograd.grad(steered(x).square().sum(), list(steered.adapter_parameters()))
    torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_compiled_after_steering_answers_the_same() -> None:
    torch.manual_seed(0)
    model = get_spear_model(timm.create_model("resnet10t", num_classes=10).eval(), SpearConfig(alpha=0.0))
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(0.1)
        x = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))
