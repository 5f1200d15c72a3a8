"""A small network of every backbone family that a user meets first, with random weights."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from spear_hf import SpearConfig, SpearModel, get_spear_model, load_base_model
from spear_hf.utils.batch import logits_of

SHALLOW = {"depths": [1, 1, 2, 1], "num_labels": 10}
VIT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}


def of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10, **options)


def of_transformers(family: str, **options: Any) -> Callable[[], nn.Module]:
    model, config = (getattr(transformers, family + kind) for kind in ("ForImageClassification", "Config"))
    return lambda: model(config(**options))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "timm resnet": (of_timm("test_resnet"), 32),
    "timm resnext": (
        lambda: ResNet(
            Bottleneck, (1, 1, 1, 1), 10, cardinality=4, base_width=16, channels=(8, 16, 24, 32), act_layer=nn.SiLU
        ),
        32,
    ),
    "timm resnetv2 gn": (of_timm("resnetv2_50d_gn", layers=(1, 1, 1, 1), channels=(128, 128, 256, 256)), 32),
    "timm vit": (of_timm("vit_tiny_patch16_224", img_size=64, embed_dim=48, depth=4), 64),
    "timm deit": (of_timm("deit_tiny_distilled_patch16_224", img_size=64, embed_dim=48, depth=4), 64),
    "timm convnext": (of_timm("test_convnext"), 32),
    "timm swin": (
        of_timm("swin_tiny_patch4_window7_224", img_size=56, embed_dim=8, depths=(2, 1, 1, 1), num_heads=(1, 2, 4, 8)),
        56,
    ),
    "timm efficientnet": (of_timm("test_efficientnet"), 32),
    "timm mobilenet": (of_timm("mobilenetv3_small_050"), 32),
    "torchvision resnet": (
        lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], 10),
        32,
    ),
    "torchvision resnext": (
        lambda: torchvision.models.ResNet(
            torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], 10, groups=4, width_per_group=4
        ),
        32,
    ),
    "transformers resnet": (
        of_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 16, 24, 32], layer_type="basic", **SHALLOW),
        64,
    ),
    "transformers vit": (of_transformers("ViT", image_size=32, patch_size=8, num_labels=10, **VIT), 32),
    "transformers convnext": (of_transformers("ConvNext", hidden_sizes=[8, 16, 24, 32], **SHALLOW), 64),
    "transformers swin": (
        of_transformers("Swin", image_size=64, embed_dim=8, num_heads=[1, 2, 2, 2], window_size=2, **SHALLOW),
        64,
    ),
    "cifar resnet26": (lambda: load_base_model("cifar_resnet26", pretrained=False), 32),
}
"""family -> (what builds it, the side of its images)."""

FEW = (
    "timm resnet",
    "timm vit",
    "timm convnext",
    "timm swin",
    "timm efficientnet",
    "torchvision resnet",
    "transformers vit",
)
ALL_FAMILIES = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@cache
def _drawn(family: str) -> tuple[SpearModel, Tensor, Tensor]:
    torch.manual_seed(0)
    build, side = FAMILIES[family]
    base, x = build().eval(), torch.randn(2, 3, side, side)
    with torch.no_grad():
        source = logits_of(base(x))
    model = get_spear_model(base, SpearConfig(alpha=0.0, boundaries="all"), adapter_name="plain", inputs=x)
    model.add_adapter("mixing", SpearConfig(boundaries="all"))
    return model, x, source


def steered_family(family: str) -> tuple[SpearModel, Tensor, Tensor]:
    """A copy of a model with adapters "plain" and "mixing" (statistics), two images, and the base's logits for them."""
    model, x, source = _drawn(family)
    return copy.deepcopy(model), x, source
