"""The promises of a SpearModel, over every backbone family that a user meets first."""

from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from spear_hf import Spear, SpearConfig, get_spear_model, load_base_model
from spear_hf.utils.batch import logits_of

VIT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}


def tiny(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10, **options)


FAMILIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "timm resnet": (tiny("resnet10t"), 32),
    "timm resnext": (tiny("resnext26ts"), 32),
    "timm resnetv2 gn": (tiny("resnetv2_50d_gn"), 32),
    "timm vit": (tiny("vit_tiny_patch16_224", img_size=64), 64),
    "timm deit": (tiny("deit_tiny_distilled_patch16_224", img_size=64), 64),
    "timm convnext": (tiny("convnext_atto"), 32),
    "timm swin": (tiny("swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, num_heads=(1, 2, 4, 8)), 56),
    "timm efficientnet": (tiny("efficientnet_b0"), 32),
    "timm mobilenet": (tiny("mobilenetv3_small_050"), 32),
    "torchvision resnet": (lambda: torchvision.models.resnet18(num_classes=10), 32),
    "torchvision resnext": (
        lambda: torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], 10),
        32,
    ),
    "transformers resnet": (
        lambda: ResNetForImageClassification(
            ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], layer_type="basic", num_labels=10
            )
        ),
        64,
    ),
    "transformers vit": (
        lambda: ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **VIT)),
        32,
    ),
    "transformers convnext": (
        lambda: ConvNextForImageClassification(
            ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=10)
        ),
        64,
    ),
    "transformers swin": (
        lambda: SwinForImageClassification(
            SwinConfig(
                image_size=64, embed_dim=8, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 2], window_size=2, num_labels=10
            )
        ),
        64,
    ),
    "cifar resnet26": (lambda: load_base_model("cifar_resnet26", pretrained=False), 32),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A randomly initialised model and two images, both the same in every test."""
    torch.manual_seed(0)
    build, side = FAMILIES[request.param]
    return build().eval(), torch.randn(2, 3, side, side)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_identity_is_bitwise_in_every_family(family: tuple[nn.Module, Tensor], dtype: torch.dtype) -> None:
    model, x = family[0].to(dtype), family[1].to(dtype)
    with torch.no_grad():
        expected = logits_of(model(x))
        steered = get_spear_model(model, SpearConfig(alpha=0.0, boundaries="all"))
        assert torch.equal(logits_of(steered(x)), expected)
        with steered.disable_adapter():
            assert torch.equal(logits_of(steered(x)), expected)


def test_what_was_adapted_comes_back_exactly(family: tuple[nn.Module, Tensor]) -> None:
    model, x = family
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        expected = logits_of(model(x))
    tta = Spear(get_spear_model(model, SpearConfig(tau=0.0, learning_rate=0.01)))
    for _ in range(2):
        tta.step(x)
    assert tta.last is not None
    assert tta.last.gamma_deviation > 0
    assert tta.unload() is model
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(logits_of(model(x)), expected)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    torch.manual_seed(0)
    side = {"img_size": 64} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=10, **side).eval()
    x = torch.randn(2, 3, 64, 64)
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
