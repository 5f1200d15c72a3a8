"""Several adapters on one base: scaled, averaged, mixed within a batch."""

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.adapters.names import name_of
from spear_hf.errors import AdapterLoadError, AdapterNotFoundError, ConfigError, InputError
from spear_hf.steering.model import SpearModel
from tests.builders import steered

PLAIN = SpearConfig(alpha=0.0, boundaries="all")


@pytest.fixture
def model(net: nn.Module) -> SpearModel:
    """Adapters "fog" (active, all boundaries) and "snow" (depths 0 and 1), both away from the identity, alpha 0."""
    two = steered(net, PLAIN, adapter_name="fog")
    two.add_adapter("snow", SpearConfig(alpha=0.0, boundaries=(0, 1)))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name in ("fog", "snow"):
            for parameter in two.adapter_parameters(name):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return two


def test_a_scale_of_one_changes_no_bit_and_of_zero_gives_the_source(model: SpearModel, images: Tensor) -> None:
    expected = model(images)
    model.set_scale(1.0)
    assert torch.equal(model(images), expected)
    before = model.set_scale(0.0)
    with model.disable_adapter():
        source = model(images)
    assert torch.equal(model(images), source)
    model.restore(before)
    assert torch.equal(model(images), expected)


def test_half_the_scale_is_half_the_distance(model: SpearModel) -> None:
    before = model.set_scale(0.5)
    after = model.snapshot()
    torch.testing.assert_close(after["0.gamma"], 1 + (before["0.gamma"] - 1) / 2)
    torch.testing.assert_close(after["0.beta"], before["0.beta"] / 2)


def test_scaling_keeps_the_parameter_objects(model: SpearModel) -> None:
    parameters = [id(p) for p in model.adapter_parameters()]
    model.set_scale(0.5)
    assert [id(p) for p in model.adapter_parameters()] == parameters


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), True, "1"])
def test_a_scale_that_is_no_number_is_refused(model: SpearModel, scale: float) -> None:
    with pytest.raises(ConfigError, match="finite number"):
        model.set_scale(scale)


def test_a_weighted_adapter_is_the_sum_of_distances_over_all_boundaries(model: SpearModel) -> None:
    model.add_weighted_adapter(["snow", "fog"], [0.25, 0.5], "mix")
    fog, snow, mix = (model.snapshot(name) for name in ("fog", "snow", "mix"))
    torch.testing.assert_close(mix["0.gamma"], 1 + 0.25 * (snow["0.gamma"] - 1) + 0.5 * (fog["0.gamma"] - 1))
    torch.testing.assert_close(mix["3.beta"], 0.5 * fog["3.beta"])
    assert model.peft_config["mix"].boundaries == (0, 1, 2, 3)
    assert model.active_adapters == ["fog"]


def test_one_adapter_at_weight_one_is_a_copy(model: SpearModel, images: Tensor) -> None:
    expected = model(images)
    model.add_weighted_adapter(["fog"], [1], "copy")
    model.set_adapter("copy")
    assert torch.equal(model(images), expected)
    assert model.peft_config["copy"] == model.peft_config["fog"]


def test_weights_and_names_must_fit(model: SpearModel) -> None:
    with pytest.raises(ConfigError, match="each of 2"):
        model.add_weighted_adapter(["fog", "snow"], [1.0], "mix")
    with pytest.raises(AdapterNotFoundError, match="'rain'"):
        model.add_weighted_adapter(["fog", "rain"], [1.0, 1.0], "mix")
    assert sorted(model.peft_config) == ["fog", "snow"]


def test_each_image_of_a_mixed_batch_gets_its_own_adapter(model: SpearModel, images: Tensor) -> None:
    names = ["fog", "snow", None, "__base__"] * 4
    mixed = model(images, adapter_names=names)
    for i, name in enumerate(names[:3]):
        model.set_adapter(name)
        torch.testing.assert_close(mixed[i::4], model(images)[i::4])
    torch.testing.assert_close(mixed[3::4], model(images)[3::4])


def test_a_mixed_batch_leaves_the_active_adapter_and_identity_rows_exact(model: SpearModel, images: Tensor) -> None:
    fog = model(images)
    with model.disable_adapter():
        source = model(images)
    assert torch.equal(model(images, adapter_names=[None] * 16), source)
    assert model.active_adapters == ["fog"]
    assert torch.equal(model(images), fog)


def test_a_mixed_batch_gives_gradients_to_the_adapters_in_it(model: SpearModel, images: Tensor) -> None:
    model(images, adapter_names=["fog"] * 8 + [None] * 8).square().sum().backward()
    assert all(p.grad is not None for p in model.adapter_parameters("fog"))
    assert all(p.grad is None for p in model.adapter_parameters("snow"))


def test_names_that_do_not_fit_the_batch_are_refused(model: SpearModel, images: Tensor) -> None:
    with pytest.raises(InputError, match=r"3 entries.*batch of 16"):
        model(images, adapter_names=["fog"] * 3)
    with pytest.raises(AdapterNotFoundError, match="'rain'"):
        model(images, adapter_names=["rain"] * 16)
    assert model.active_adapters == ["fog"]


def test_mixed_statistics_leave_no_image_to_the_source(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(alpha=0.5))
    with pytest.raises(ConfigError, match="whole batch"):
        model(images, adapter_names=["default", None] * 8)


def test_a_snapshot_of_other_shapes_is_refused(model: SpearModel) -> None:
    state = model.snapshot()
    with pytest.raises(AdapterLoadError, match="does not fit"):
        model.restore({**state, "0.gamma": torch.ones(1)})


def test_an_adapter_can_be_added_after_the_last_was_deleted(model: SpearModel) -> None:
    model.delete_adapter("fog")
    model.delete_adapter("snow")
    model.add_adapter("rain", PLAIN)
    model.set_adapter("rain")
    assert model.active_adapter == "rain"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("me/resnet50-rsp.fog", "resnet50-rsp-fog"),
        ("./runs/adapt/", "adapt"),
        ("a/base", "base-adapter"),
        ("..", "adapter"),
    ],
)
def test_names_are_made_from_folders_and_repos(source: str, name: str) -> None:
    assert name_of(source) == name
