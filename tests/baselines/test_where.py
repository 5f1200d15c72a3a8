"""Where a method learns: which parameters, under which statistics, and what is left when it goes."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from spear_hf import SpearConfig, get_spear_model
from spear_hf.baselines import METHODS
from spear_hf.baselines.buffers import BufferLayer, buffer_layers
from spear_hf.baselines.dice import Dice
from spear_hf.baselines.in_place import NORMS, norm_affine, weights_and_biases
from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.skip import kept_norms
from spear_hf.baselines.statistics import use_batch_statistics
from spear_hf.boundaries import Boundary
from spear_hf.errors import ConfigError


class Plain(nn.Module):
    """Two convolutions and no normalisation layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def tiny_vit() -> nn.Module:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2, image_size=32, patch_size=8
    )
    return ViTForImageClassification(config).eval()


def tiny_resnet() -> nn.Module:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=5)
    return ResNetForImageClassification(config).eval()


# --- statistics ------------------------------------------------------------------------------------------------------


def test_batch_statistics_are_those_of_torch_and_gradients_flow_through_them() -> None:
    norm, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5, requires_grad=True)
    norm.running_mean.fill_(7.0)  # pyright: ignore
    expected = norm.train()(x)
    (gradient,) = torch.autograd.grad(expected[0].sum(), x)
    norm = nn.BatchNorm2d(3).eval()
    use_batch_statistics(norm)
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(torch.autograd.grad(norm(x)[0].sum(), x)[0], gradient)


def test_one_value_a_channel_takes_the_statistics_of_the_source() -> None:
    norm, x = nn.BatchNorm2d(3).eval(), torch.randn(1, 3, 1, 1)
    norm.running_mean.fill_(2.0)  # pyright: ignore
    expected = norm(x)
    use_batch_statistics(norm)
    assert torch.equal(norm(x), expected)
    assert not torch.equal(norm(x.expand(1, 3, 2, 2)), expected.expand(1, 3, 2, 2))


def test_buffers_are_there_again_after_every_forward_also_after_one_that_failed() -> None:
    norm = nn.BatchNorm2d(3).eval()
    before = dict(norm.state_dict())
    use_batch_statistics(norm)
    norm(torch.randn(2, 3, 4, 4))
    with pytest.raises(RuntimeError):
        norm(torch.randn(2, 5, 4, 4))
    assert norm.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())


def test_a_norm_with_an_activation_keeps_it() -> None:
    from timm.layers.norm_act import BatchNormAct2d

    norm = BatchNormAct2d(3).eval()
    use_batch_statistics(norm)
    assert bool((norm(torch.randn(4, 3, 5, 5)) >= 0).all())


# --- norm and weights ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "by_structure", "by_name"),
    [
        ("resnet50", (43, 10), (43, 10)),
        ("vit_base_patch16_224", (18, 7), (18, 7)),
        ("resnetv2_50d_gn", (41, 10), (50, 1)),
    ],
)
def test_the_last_stage_is_skipped_by_structure_or_as_published(
    name: str, by_structure: tuple[int, int], by_name: tuple[int, int]
) -> None:
    net = timm.create_model(name).eval()
    for skip, expected in (("last_stage", by_structure), ("published", by_name)):
        kept = len(kept_norms(net, NORMS, skip))
        assert (kept, len(kept_norms(net, NORMS)) - kept) == expected


def test_named_modules_are_skipped_with_all_inside_them(net: nn.Module) -> None:
    assert len(kept_norms(net, NORMS, ["layer3", "stem.1"])) == 4
    with pytest.raises(ConfigError, match=r"skip=\['layer9'\] is not allowed; give None"):
        METHODS["tent"](net, skip=["layer9"])
    with pytest.raises(ConfigError, match="skip='last' is not allowed"):
        METHODS["tent"](net, skip="last")


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
    expected = get_spear_model(copy.deepcopy(net), config)(images).detach()
    tent = METHODS["tent"](net, where="rsp", config=config)
    assert tent.rule.learning_rate == 0.02
    assert tent.optimizer.defaults["betas"] == (0.5, 0.999)
    assert torch.equal(tent.step(images), expected)
    assert sum(p.numel() for p in tent.parameters()) == 2 * (8 + 8 + 16 + 24)
    assert METHODS["tent"](tent.unload(), where="rsp", config=config, learning_rate=0.1).rule.learning_rate == 0.1


def test_a_steered_model_is_taken_as_it_is(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net, SpearConfig(boundaries=(0,)))
    tent = METHODS["tent"](model, where="rsp")
    tent.step(images)
    assert [id(p) for p in tent.parameters()] == [id(p) for p in model.adapter_parameters()]
    assert tent.unload() is net
    with pytest.raises(ConfigError, match="has its configuration already; leave config= out"):
        METHODS["tent"](model, where="rsp", config=SpearConfig())


def test_unknown_places_and_misplaced_options_are_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match="where='head' is not known; allowed are norm, weights, rsp, buffer"):
        METHODS["tent"](net, where="head")
    with pytest.raises(ConfigError, match="not 'norm'; pass where='rsp' with it"):
        METHODS["tent"](net, config=SpearConfig())


# --- buffer layers ---------------------------------------------------------------------------------------------------


def test_a_buffer_layer_is_the_mean_of_its_convolutions_beside_the_identity() -> None:
    layer, u = BufferLayer(2, (1, 3), 2, 0.5, Dice(0)), torch.randn(1, 2, 4, 4)
    one, three = layer.convolutions
    conv1, conv3 = nn.functional.conv2d(u, one), nn.functional.conv2d(u, three, padding=1)
    torch.testing.assert_close(layer(u), u + 0.5 * (0.5 * conv1 + 0.5 * conv3))
    assert sum(p.numel() for p in BufferLayer(16, (1, 3), 2, 1e-4, Dice(0)).parameters()) == 10 * 16**2 + 3


def test_buffer_layers_sit_at_the_stem_and_learn_alone(net: nn.Module) -> None:
    where = buffer_layers(net, alpha=1e-4)
    assert where.learned.count == 10 * 8**2 + 3
    assert not any(p.requires_grad for p in net.parameters())
    assert buffer_layers(where.undo(), boundaries=(0, 1), learn_norms=True).learned.count == 2 * 643 + 2 * 104


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


# --- learned ---------------------------------------------------------------------------------------------------------


def test_a_graph_survives_a_forward_with_other_values(net: nn.Module, images: Tensor) -> None:
    where = norm_affine(net)
    expected = torch.autograd.grad(where.forward(images).square().mean(), where.learned.parameters)
    loss = where.forward(images).square().mean()
    with torch.no_grad(), where.learned.holding([v + 1 for v in where.learned.start]):
        assert not torch.equal(where.forward(images).square().mean(), loss)
    found = torch.autograd.grad(loss, where.learned.parameters)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_pull_moves_part_of_the_way() -> None:
    learned = ParameterSet([nn.Parameter(torch.tensor([1.0, 2.0]))])
    learned.pull([torch.tensor([3.0, 2.0])], 0.25)
    torch.testing.assert_close(learned.parameters[0].detach(), torch.tensor([1.5, 2.0]))
