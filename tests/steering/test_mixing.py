import pytest
import torch
from torch import Tensor, nn

from spear_hf.steering.context import AdapterChoice, Steering
from spear_hf.steering.mixing import AlphaMixing, batch_norms
from spear_hf.steering.moments import batch_statistics
from spear_hf.steering.rsp import RSP


def mixing(alpha: float) -> AlphaMixing:
    """The hook of a layer of a model whose adapter has this alpha."""
    steering = Steering()
    steering.choose(AdapterChoice(("default",), alpha, {"0": (RSP(4, 1),)}))
    return AlphaMixing(steering)


def norm(kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    layer = kind(4)
    layer.load_state_dict(
        layer.state_dict()
        | {
            "running_mean": torch.randn(4),
            "running_var": torch.rand(4) + 0.5,
            "weight": torch.randn(4),
            "bias": torch.randn(4),
        }
    )
    return layer.eval()


def by_hand(layer: nn.Module, x: Tensor, alpha: float) -> Tensor:
    state = layer.state_dict()
    mean = (1 - alpha) * state["running_mean"] + alpha * x.mean((0, 2, 3))
    variance = (1 - alpha) * state["running_var"] + alpha * x.var((0, 2, 3), correction=0)
    view = (1, -1, 1, 1)
    z = (x - mean.view(view)) / torch.sqrt(variance.view(view) + layer.eps)  # pyright: ignore[reportOperatorIssue]
    return z * state["weight"].view(view) + state["bias"].view(view)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_mixed_statistics_equal_those_computed_by_hand(alpha: float) -> None:
    layer, x = norm(), torch.randn(6, 4, 5, 5) * 3 + 2
    layer.register_forward_pre_hook(mixing(alpha))
    torch.testing.assert_close(layer(x), by_hand(layer, x, alpha), rtol=1e-5, atol=1e-5)


def test_no_buffer_is_ever_written() -> None:
    layer, x = norm(), torch.randn(6, 4, 5, 5)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer.register_forward_pre_hook(mixing(0.5))
    layer(x)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


def test_alpha_zero_leaves_the_output_bit_identical() -> None:
    layer, x = norm(), torch.randn(6, 4, 5, 5)
    expected = layer(x)
    layer.register_forward_pre_hook(mixing(0.0))
    assert torch.equal(layer(x), expected)


def test_one_value_a_channel_is_answered_with_the_source() -> None:
    layer, x = norm(), torch.randn(1, 4, 1, 1)
    expected = layer(x)
    layer.register_forward_pre_hook(mixing(0.5))
    assert torch.equal(layer(x), expected)


def test_variance_is_biased_and_statistics_carry_no_gradient() -> None:
    x = torch.tensor([[[1.0]], [[3.0]]], requires_grad=True)
    statistics = batch_statistics(x)
    assert statistics is not None
    mean, variance = statistics
    assert (float(mean), float(variance)) == (2.0, 1.0)
    assert not variance.requires_grad


def test_layers_with_running_statistics_are_found_by_what_they_hold() -> None:
    from torchvision.ops import FrozenBatchNorm2d

    model = nn.Sequential(
        nn.BatchNorm1d(4),
        FrozenBatchNorm2d(4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.GroupNorm(2, 4),
    )
    assert [name for name, _ in batch_norms(model)] == ["0", "1"]
