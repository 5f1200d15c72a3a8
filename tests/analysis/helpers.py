"""Small things that several of these tests need."""

import timm
import torch
from torch import nn


def hooks_of(model: nn.Module) -> int:
    """How many forward hooks and pre-hooks there are."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def a_vit() -> nn.Module:
    """timm's test_vit: 160 x 160 images, no BatchNorm."""
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=10).eval()
