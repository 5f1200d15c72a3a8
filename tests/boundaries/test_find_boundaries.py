"""Where the stages of each family end: (module paths, channels, channel axis), from models without weights."""

from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F

from spear_hf.boundaries import Boundary, find_boundaries, verify
from spear_hf.errors import NoBoundariesError
from tests.builders import tiny_resnet, tiny_vit

BLOCKS = (1, 2, 1, 1)  # in each stage, where a network of every family is kept small
TIMM: dict[str, tuple[dict[str, Any], list[str]]] = {
    "resnet50": (
        {"layers": BLOCKS},
        ["maxpool 64 1", "layer1.0 256 1", "layer2.1 512 1", "layer3.0 1024 1", "layer4.0 2048 1"],
    ),
    "resnetv2_50d_gn": (
        {"layers": BLOCKS},
        [
            *("stem.pool 64 1", "stages.0.blocks.0 256 1", "stages.1.blocks.1 512 1"),
            *("stages.2.blocks.0 1024 1", "stages.3.blocks.0 2048 1"),
        ],
    ),
    "test_nfnet": (
        {},
        ["stem.conv4 128 1", "stages.0.0 32 1", "stages.1.0 64 1", "stages.2.0 96 1", "stages.3.0 128 1"],
    ),
    "vit_base_patch16_224": ({"depth": 4}, ["<blocks.0 768 -1", *(f"blocks.{i} 768 -1" for i in range(4))]),
    "deit_tiny_distilled_patch16_224": (
        {"depth": 4},
        ["<blocks.0 192 -1", *(f"blocks.{i} 192 -1" for i in range(4))],
    ),
    "convnext_tiny": (
        {"depths": BLOCKS},
        [
            *("stem.1 96 1", "stages.0.blocks.0 96 1", "stages.1.blocks.1 192 1"),
            *("stages.2.blocks.0 384 1", "stages.3.blocks.0 768 1"),
        ],
    ),
    "test_efficientnet": (
        {},
        [
            *("bn1.act 24 1", "blocks.0.0.bn1.act 16 1", "blocks.1.0.bn2 24 1"),
            *("blocks.2.0.bn2 32 1", "blocks.3.0.bn3 48 1", "blocks.4.0.bn3 64 1"),
        ],
    ),
}

LARGE_TIMM = {
    "resnet50": ["maxpool 64 1", "layer1.2 256 1", "layer2.3 512 1", "layer3.5 1024 1", "layer4.2 2048 1"],
    "resnext50_32x4d": ["maxpool 64 1", "layer1.2 256 1", "layer2.3 512 1", "layer3.5 1024 1", "layer4.2 2048 1"],
    "resnetv2_50d_gn": [
        *("stem.pool 64 1", "stages.0.blocks.2 256 1", "stages.1.blocks.3 512 1"),
        *("stages.2.blocks.5 1024 1", "stages.3.blocks.2 2048 1"),
    ],
    "dm_nfnet_f0": [
        "stem.conv4 128 1",
        "stages.0.0 256 1",
        "stages.1.1 512 1",
        "stages.2.5 1536 1",
        "stages.3.2 1536 1",
    ],
    "vit_base_patch16_224": ["<blocks.0 768 -1", *(f"blocks.{i} 768 -1" for i in (2, 5, 8, 11))],
    "deit_tiny_distilled_patch16_224": ["<blocks.0 192 -1", *(f"blocks.{i} 192 -1" for i in (2, 5, 8, 11))],
    "convnext_tiny": [
        *("stem.1 96 1", "stages.0.blocks.2 96 1", "stages.1.blocks.2 192 1"),
        *("stages.2.blocks.8 384 1", "stages.3.blocks.2 768 1"),
    ],
    "swin_tiny_patch4_window7_224": [
        *("patch_embed.norm 96 -1", "layers.0.blocks.1 96 -1", "layers.1.blocks.1 192 -1"),
        *("layers.2.blocks.5 384 -1", "layers.3.blocks.1 768 -1"),
    ],
    "efficientnet_b0": [
        *("bn1.act 32 1", "blocks.0.0 16 1", "blocks.1.1 24 1"),
        *("blocks.2.1 40 1", "blocks.4.2 112 1", "blocks.6.0 320 1"),
    ],
    "mobilenetv3_large_100": [
        *("blocks.0.0 16 1", "blocks.1.1 24 1", "blocks.2.2 40 1", "blocks.4.1 112 1", "blocks.5.2 160 1"),
    ],
}

SMALL_VIT = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TRANSFORMERS = {
    "ResNet": (
        {"embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [1, 2, 1], "layer_type": "basic"},
        [
            *("resnet.embedder.pooler 8 1", "resnet.encoder.stages.0.layers.0 8 1"),
            *("resnet.encoder.stages.1.layers.1 16 1", "resnet.encoder.stages.2.layers.0 32 1"),
        ],
    ),
    "ViT": (SMALL_VIT, ["vit.embeddings 32 -1", *(f"vit.layers.{i} 32 -1" for i in range(4))]),
    "DeiT": (SMALL_VIT, ["deit.embeddings 32 -1", *(f"deit.layers.{i} 32 -1" for i in range(4))]),
    "ConvNext": (
        {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 2, 1, 1]},
        [
            *("convnext.embeddings.layernorm 8 1", "convnext.encoder.stages.0.layers.0 8 1"),
            *("convnext.encoder.stages.1.layers.1 16 1", "convnext.encoder.stages.2.layers.0 32 1"),
            "convnext.encoder.stages.3.layers.0 64 1",
        ],
    ),
    "Swin": (
        {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4},
        [
            *("swin.embeddings.norm 16 -1", "swin.encoder.layers.0.blocks.1[0] 16 -1"),
            "swin.encoder.layers.1.blocks.1[0] 32 -1",
        ],
    ),
}

MODELS = torchvision.models
TORCHVISION = {
    "resnet18": (
        lambda: MODELS.resnet18(),
        ["maxpool 64 1", "layer1.1 64 1", "layer2.1 128 1", "layer3.1 256 1", "layer4.1 512 1"],
    ),
    "vit": (
        lambda: MODELS.VisionTransformer(32, 8, 4, 4, 32, 64),
        [f"{'<' * first}encoder.layers.encoder_layer_{i} 32 -1" for i, first in [(0, 1), *((i, 0) for i in range(4))]],
    ),
    "swin": (
        lambda: MODELS.SwinTransformer([4, 4], 16, [1, 1, 2, 1], [1, 2, 2, 4], [7, 7]),
        ["features.0.2 16 -1", *(f"features.{i} -1" for i in ("1.0 16", "3.0 32", "5.1 64", "7.0 128"))],
    ),
}

LARGE_TORCHVISION = {
    "resnet18": ["maxpool 64 1", "layer1.1 64 1", "layer2.1 128 1", "layer3.1 256 1", "layer4.1 512 1"],
    "vit_b_32": [
        "<encoder.layers.encoder_layer_0 768 -1",
        *(f"encoder.layers.encoder_layer_{i} 768 -1" for i in (2, 5, 8, 11)),
    ],
    "swin_t": ["features.0.2 96 -1", *(f"features.{i} -1" for i in ("1.1 96", "3.1 192", "5.5 384", "7.1 768"))],
}


def spelled(boundary: Boundary) -> str:
    """A row of the tables above: "<" marks a pre-hook, [0] the slot of a tuple."""
    slot = "".join(f"[{step!r}]" for step in boundary.output_slot)
    before = "<" if boundary.where == "in" else ""
    return f"{before}{boundary.module}{slot} {boundary.channels} {boundary.channel_axis}"


def without_weights(build, *args, **kwargs) -> nn.Module:
    with torch.device("meta"):
        return build(*args, **kwargs)


class ReluBlock(nn.Module):
    """A CIFAR network's basic block: functional activations, a shortcut that may be empty."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 3, stride, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential() if width_in == width else nn.Conv2d(width_in, width, 1, stride)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class CifarNet(nn.Module):
    """A stem whose last step is a function: no module returns z_0."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(ReluBlock(8, 8, 1), ReluBlock(8, 8, 1))
        self.layer2 = nn.Sequential(ReluBlock(8, 16, 2), ReluBlock(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, 1, 1)

    def forward(self, x):
        return x + self.conv(x)


class EqualBlocks(nn.Module):
    """A stack of twelve equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.Sequential(*(Residual() for _ in range(12)))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize(
    "name", [n if n.startswith("test_") else pytest.param(n, marks=pytest.mark.slow) for n in TIMM]
)
def test_timm_stages_end_where_the_table_says(name):
    options, rows = TIMM[name]
    assert [spelled(b) for b in find_boundaries(without_weights(timm.create_model, name, **options))] == rows


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_TIMM)
def test_large_timm_stages_end_where_the_table_says(name):
    assert [spelled(b) for b in find_boundaries(without_weights(timm.create_model, name))] == LARGE_TIMM[name]


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_transformers_stages_end_where_the_table_says(family):
    settings, rows = TRANSFORMERS[family]
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}ForImageClassification")(config)
    assert [spelled(b) for b in find_boundaries(model)] == rows


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_stages_end_where_the_table_says(name):
    build, rows = TORCHVISION[name]
    assert [spelled(b) for b in find_boundaries(without_weights(build))] == rows


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_TORCHVISION)
def test_large_torchvision_stages_end_where_the_table_says(name):
    model = without_weights(torchvision.models.get_model, name)
    assert [spelled(b) for b in find_boundaries(model)] == LARGE_TORCHVISION[name]


@pytest.mark.parametrize(("groups", "last"), [(2, [5, 11]), (3, [3, 7, 11]), (6, [1, 3, 5, 7, 9, 11]), (12, range(12))])
def test_num_groups_divides_a_stack_of_equal_blocks(groups, last):
    found = find_boundaries(without_weights(EqualBlocks), groups)
    assert [b.module for b in found[1:]] == [f"blocks.{i}" for i in last]
    assert [b.name for b in found] == ["stem", *(f"stage{i + 1}" for i in range(groups))]


@pytest.mark.parametrize("build", [CifarNet, tiny_vit, tiny_resnet])
def test_a_replica_shows_what_the_model_itself_does(build, monkeypatch: pytest.MonkeyPatch):
    expected = find_boundaries(build())
    monkeypatch.setattr(verify, "_SMALL", 0)
    assert find_boundaries(build()) == expected


def test_more_groups_than_blocks_gives_every_block():
    assert len(find_boundaries(without_weights(EqualBlocks), 100)) == 1 + 12


def test_a_functional_stem_is_steered_before_the_first_block():
    assert [spelled(b) for b in find_boundaries(CifarNet())] == ["<layer1.0 8 1", "layer1.1 8 1", "layer2.1 16 1"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_changes_nothing(dtype):
    inputs = torch.randn(2, 3, 32, 32)
    assert find_boundaries(CifarNet().to(dtype), inputs=inputs) == find_boundaries(CifarNet(), inputs=inputs)


def test_a_plain_stack_of_convolutions_is_cut_at_its_pools():
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(1), nn.LazyLinear(10))
    model(torch.zeros(1, 3, 32, 32))
    found = find_boundaries(model, inputs=torch.zeros(2, 3, 32, 32))
    assert [spelled(b) for b in found] == ["2 8 1", "4 16 1", "6 32 1"]


def test_stem_feature_info_is_the_stem_that_timm_lists():
    found = find_boundaries(without_weights(timm.create_model, "test_nfnet"), stem="feature_info")
    assert spelled(found[0]) == "stem.conv3 64 1"


@pytest.mark.slow
def test_stem_feature_info_is_the_papers_nfnet_stem():
    found = find_boundaries(without_weights(timm.create_model, "dm_nfnet_f0"), stem="feature_info")
    assert [b.channels for b in found] == [64, 256, 512, 1536, 1536]


def test_stem_patch_embed_is_before_positions_and_class_token():
    assert (
        spelled(find_boundaries(without_weights(timm.create_model, "test_vit"), stem="patch_embed")[0])
        == "patch_embed 64 -1"
    )


def test_a_model_that_refuses_every_probe_asks_for_inputs():
    with pytest.raises(NoBoundariesError, match="pass inputs="):
        find_boundaries(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(7, 10)))


def test_a_model_without_blocks_says_how_to_name_boundaries():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    with pytest.raises(NoBoundariesError, match=r"pass boundaries=\[Boundary\(.*register a rule with @boundary_rule"):
        find_boundaries(model, inputs=torch.zeros(2, 3, 2, 2))
