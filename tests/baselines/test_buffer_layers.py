"""Buffer layers: their equation, where they sit, and who may host them."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.backbones.cifar import BasicBlock, CifarResNet, ResNeXtBottleneck
from spear_hf.baselines import METHODS
from spear_hf.baselines.buffer_layers import BufferLayer, buffer_layers, inner_activations
from spear_hf.baselines.component import Dice
from spear_hf.boundaries import Boundary
from spear_hf.boundaries.verify import ProbeSession
from spear_hf.errors import ConfigError
from tests.builders import NORMALIZED, TwoStages, tiny_vit


def test_a_buffer_layer_is_the_mean_of_its_convolutions_beside_the_identity() -> None:
    layer, u = BufferLayer(2, (1, 3), 2, 0.5, Dice(0)), torch.randn(1, 2, 4, 4)
    one, three = layer.convolutions
    conv1, conv3 = nn.functional.conv2d(u, one), nn.functional.conv2d(u, three, padding=1)
    torch.testing.assert_close(layer(u), u + 0.5 * (0.5 * conv1 + 0.5 * conv3))
    assert sum(p.numel() for p in BufferLayer(16, (1, 3), 2, 1e-4, Dice(0)).parameters()) == 10 * 16**2 + 3


def test_buffer_layers_sit_at_the_stem_and_learn_alone(net: nn.Module) -> None:
    adapted = buffer_layers(net, alpha=1e-4)
    assert adapted.learned.count == 10 * 8**2 + 3
    assert not any(p.requires_grad for p in net.parameters())
    assert buffer_layers(adapted.undo(), boundaries=(0, 1), learn_norms=True).learned.count == 2 * 643 + 2 * 56


def test_buffer_layers_go_wherever_a_boundary_names(net: nn.Module, images: Tensor) -> None:
    inside = Boundary(1, "after the convolution", "layer1.0.conv", channels=8)
    tent = METHODS["tent"](net, where=buffer_layers(net, boundaries=[inside], alpha=0.1))
    tent.step(images)
    assert tent.last.adapted
    with pytest.raises(ConfigError, match=r"boundaries=\(\) leaves nothing to learn"):
        buffer_layers(tent.unload(), boundaries=())


def test_tokens_get_convolutions_over_the_sequence() -> None:
    layer = BufferLayer(16, (1, 3, 5, 7), 1, 1e-2, Dice(0))
    assert layer(torch.randn(2, 16, 17)).shape == (2, 16, 17)
    assert buffer_layers(tiny_vit()).learned.count == (1 + 3 + 5 + 7) * 16**2 + 5


def test_stages_have_layers_after_the_activations_inside_their_blocks() -> None:
    net = CifarResNet(widths=(4, 8, 8), depth=1).eval()
    tent: Any = METHODS["buffer"](net, stages=(1, 2), alpha=1e-5)
    places = [(b["module"], b["where"], b["channels"]) for b in tent.adapted.settings()["boundaries"]]
    assert places[1:] == [("stages.0.0.conv2", "in", 4), ("stages.1.0.conv2", "in", 8)]
    assert tent.learned.count == 2 * (10 * 4**2 + 3) + 10 * 8**2 + 3
    tent.step(torch.randn(4, 3, 8, 8))
    assert all(not torch.equal(p, s) for p, s in zip(tent.parameters(), tent.learned.start, strict=True))


class PreActivation(nn.Module):
    """A WideResNet's block, whose shortcut takes the first activation as its first convolution does, and runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.shortcut = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(x))
        shortcut = self.shortcut(x)
        return self.conv2(torch.relu(self.bn2(self.conv1(x)))) + shortcut


@pytest.mark.parametrize(
    ("block", "places"),
    [
        (PreActivation(), ["1.conv1", "1.conv2"]),
        (BasicBlock(3, 4, 1), ["1.conv2"]),
        (ResNeXtBottleneck(3, 4, 1, 64, 1), ["1.conv_conv", "1.conv_expand"]),
    ],
)
def test_an_activation_inside_a_block_is_one_of_a_norm_and_not_of_a_sum(block: nn.Module, places: list[str]) -> None:
    net = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), block, nn.ReLU()).eval()
    trace = ProbeSession(net, torch.randn(2, 3, 8, 8)).trace
    boundaries = [Boundary(0, "stem", "0"), Boundary(1, "stage1", "1")]
    assert [place.module for place in inner_activations(trace, boundaries, stage=1)] == places


def test_a_stage_without_such_a_place_or_that_is_not_there_is_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"stages=4 is not allowed; TinyNet has stages 1\.\.3"):
        buffer_layers(net, stages=(4,))
    with pytest.raises(ConfigError, match="no convolution in stage 1 of TinyNet follows a norm and an activation"):
        buffer_layers(net, stages=(1,))


def test_scales_begin_as_a_half_for_any_number_of_kernels_and_learn_unless_told_otherwise() -> None:
    layer = BufferLayer(2, (1, 3, 5, 7), 1, 1.0, Dice(0))
    assert layer.scales.tolist() == [0.5] * 4
    assert buffer_layers(TwoStages(), learn_scales=False).learned.count == 10 * 8**2 + 1


def test_any_method_may_host_buffer_layers(net: nn.Module, images: Tensor) -> None:
    place = partial(buffer_layers, boundaries=(0, 1), alpha=1e-2)
    roid: Any = METHODS["roid"](net, where=place, **NORMALIZED)
    roid.step(images)
    assert roid.last.adapted
    assert not any(p.requires_grad for p in net.parameters())


def test_the_convolutions_come_from_the_seed() -> None:
    net = TwoStages()

    def first(seed: int) -> Tensor:
        adapted = buffer_layers(net, seed=seed)
        adapted.undo()
        return adapted.learned.start[2]

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))
