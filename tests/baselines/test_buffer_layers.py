"""Buffer layers: their equation, where they sit, and who may host them."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.buffer_layers import BufferLayer, buffer_layers
from spear_hf.baselines.component import Dice
from spear_hf.boundaries import Boundary
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
