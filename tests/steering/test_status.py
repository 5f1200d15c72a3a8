import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.errors import BoundaryNotFiredError
from tests.builders import steered


def test_a_status_tells_adapters_apart(net: nn.Module) -> None:
    model = steered(net, SpearConfig(boundaries=(0, 2), alpha=0.25), adapter_name="fog")
    model.add_adapter("snow", SpearConfig(boundaries=(1,), alpha=0.0))
    with torch.no_grad():
        next(iter(model.adapter_parameters("fog"))).add_(0.5)
    status = model.get_model_status()
    fog, snow = status.adapters
    assert (fog.name, fog.is_active, fog.depths, fog.num_parameters) == ("fog", True, (0, 2), 48)
    assert fog.gamma_deviation == pytest.approx(0.5 * 8**0.5)
    assert (snow.is_active, snow.gamma_deviation, snow.beta_deviation) == (False, 0.0, 0.0)
    assert status.mixes_statistics
    assert list(status.boundaries) == ["0", "1", "2", "3"]


def test_a_status_inside_disable_adapter(net: nn.Module) -> None:
    model = steered(net, SpearConfig(alpha=0.5))
    with model.disable_adapter():
        status = model.get_model_status()
    assert status.is_disabled
    assert not status.mixes_statistics


def test_verify_returns_the_largest_change_and_leaves_no_trace(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(alpha=0.0, boundaries="all"))
    assert model.verify(images) == 0.0
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(0.1)
    before, logits = model.snapshot(), model(images)
    with model.disable_adapter():
        expected = float((logits - model(images)).detach().abs().max())
    assert model.verify(images) == expected
    torch.testing.assert_close(model.snapshot(), before, rtol=0, atol=0)


def test_verify_makes_up_its_own_input(net: nn.Module) -> None:
    assert steered(net, SpearConfig(alpha=0.0)).verify() == 0.0


def test_verify_finds_an_rsp_that_no_logit_depends_on(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(alpha=0.0, boundaries=(3,)))
    net.fc.weight.zero_()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    with pytest.raises(BoundaryNotFiredError, match="depth 3 changes no logit"):
        model.verify(images)
