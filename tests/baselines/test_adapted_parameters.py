"""What a method adapts: which parameters, under which statistics, and what `undo` leaves."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.baselines import METHODS
from spear_hf.baselines.adapted_parameters import norm_affine, weights_and_biases
from spear_hf.errors import ConfigError
from tests.builders import steered, tiny_resnet, tiny_vit


class Plain(nn.Module):
    """Two convolutions and no normalisation layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def test_norm_learns_batch_layer_and_group_norms() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(4))
    found = norm_affine(net)
    assert [id(p) for p in found.learned.parameters] == [id(p) for i in (1, 2, 4) for p in net[i].parameters()]
    assert not net[0].weight.requires_grad


def test_weights_leave_tokens_and_positions_alone() -> None:
    net = tiny_vit()
    learned = {id(p) for p in weights_and_biases(net).learned.parameters}
    left = [name for name, p in net.named_parameters() if id(p) not in learned]
    assert left == ["vit.embeddings.cls_token", "vit.embeddings.position_embeddings"]


def test_a_network_without_norms_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r'Plain has no normalisation layer .* where="rsp", or where="weights"'):
        METHODS["tent"](Plain())
    assert METHODS["tent"](Plain(), where="weights").step(torch.randn(4, 3, 9, 9)).shape == (4, 5)


def test_half_precision_is_refused_with_the_way_out(net: nn.Module) -> None:
    net = net.bfloat16()
    with pytest.raises(ConfigError, match=r"TinyNet are torch.bfloat16, which rounds .* cast the model to float32"):
        METHODS["tent"](net)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("make", [tiny_vit, tiny_resnet])
@pytest.mark.parametrize("where", ["norm", "weights", "rsp", "buffer"])
def test_every_place_works_in_transformers_models(make: Any, where: str) -> None:
    net = make()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    tent = METHODS["tent"](net, where=where)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first = tent.step(x)
    assert not torch.equal(tent.step(x), first)
    assert tent.unload() is net
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


# --- rsp -------------------------------------------------------------------------------------------------------------


def test_on_rsps_the_base_stays_and_the_configuration_says_how_to_learn(net: nn.Module, images: Tensor) -> None:
    config = SpearConfig(boundaries="all", learning_rate=0.02, adam_beta1=0.5)
    expected = steered(copy.deepcopy(net), config)(images).detach()
    tent = METHODS["tent"](net, where="rsp", config=config)
    assert tent.optimizer_config.learning_rate == 0.02
    assert tent.optimizer.defaults["betas"] == (0.5, 0.999)
    assert torch.equal(tent.step(images), expected)
    assert sum(p.numel() for p in tent.parameters()) == 2 * (8 + 8 + 16 + 24)
    again = METHODS["tent"](tent.unload(), where="rsp", config=config, learning_rate=0.1)
    assert again.optimizer_config.learning_rate == 0.1


def test_a_steered_model_is_taken_as_it_is(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(boundaries=(0,)))
    tent = METHODS["tent"](model, where="rsp")
    tent.step(images)
    assert [id(p) for p in tent.parameters()] == [id(p) for p in model.adapter_parameters()]
    assert tent.unload() is net
    with pytest.raises(ConfigError, match="has its configuration already; leave config= out"):
        METHODS["tent"](model, where="rsp", config=SpearConfig())


def test_a_graph_survives_a_forward_with_other_values(net: nn.Module, images: Tensor) -> None:
    adapted = norm_affine(net)
    expected = torch.autograd.grad(adapted.forward(images).square().mean(), adapted.learned.parameters)
    loss = adapted.forward(images).square().mean()
    with torch.no_grad(), adapted.learned.holding([v + 1 for v in adapted.learned.start]):
        assert not torch.equal(adapted.forward(images).square().mean(), loss)
    found = torch.autograd.grad(loss, adapted.learned.parameters)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
