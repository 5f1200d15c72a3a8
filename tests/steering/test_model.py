import copy
import io
import pickle
import re

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Boundary, SpearConfig, get_spear_model
from spear_hf.errors import (
    AdapterNameError,
    AdapterNotFoundError,
    AlreadySteeredError,
    BoundaryNotFiredError,
    BoundaryNotFoundError,
    CompiledBaseError,
    ConfigError,
    LaunchError,
    MergeError,
)
from spear_hf.steering.model import SpearModel
from tests.builders import steered

PLAIN = SpearConfig(alpha=0.0, boundaries="all")


def facts(model: nn.Module) -> dict[str, object]:
    """Everything of a base that unload must give back."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "requires_grad": {k: p.requires_grad for k, p in model.named_parameters()},
        "training": {k: m.training for k, m in model.named_modules()},
        "hooks": {k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in model.named_modules()},
    }


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)
    assert {k: v for k, v in after.items() if k != "state"} == {k: v for k, v in before.items() if k != "state"}


def shift(model: SpearModel, name: str = "default", by: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in model.adapter_parameters(name):
            parameter.add_(by)


def test_boundaries_of_a_small_cnn(net: nn.Module) -> None:
    model = get_spear_model(net)
    assert [(b.depth, b.channels, b.channel_axis) for b in model.boundaries] == [
        (0, 8, 1),
        (1, 8, 1),
        (2, 16, 1),
        (3, 24, 1),
    ]


def test_identity_rsps_leave_logits_bitwise_unchanged(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    assert torch.equal(steered(net, PLAIN)(images), expected)


def test_unload_gives_back_exactly_what_came_in(net: nn.Module, images: Tensor) -> None:
    net.train()
    net.fc.requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]
    before = facts(net)
    model = get_spear_model(net)
    model(images)
    shift(model)
    model(images)
    assert model.unload() is net
    assert_same(before, facts(net))


def test_inside_disable_adapter_the_model_is_the_source(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    model = steered(net, SpearConfig(alpha=0.5))
    shift(model)
    with model.disable_adapter(), model.disable_adapter():
        assert torch.equal(model(images), expected)
    assert not torch.equal(model(images), expected)


def test_disable_adapter_ends_when_an_exception_passes_through(net: nn.Module) -> None:
    model = steered(net)
    with pytest.raises(KeyError), model.disable_adapter():
        raise KeyError
    assert not model.is_disabled
    assert all(p.requires_grad for p in model.adapter_parameters())


def test_only_rsps_require_grad(net: nn.Module) -> None:
    model = steered(net, SpearConfig(boundaries=(0, 2)))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * (8 + 16)
    assert model.get_nb_trainable_parameters()[0] == 48


def test_printed_parameters_read_as_peft_prints_them(net: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    steered(net, SpearConfig(boundaries=(0,))).print_trainable_parameters()
    assert re.fullmatch(
        r"trainable params: 16 \|\| all params: [\d,]+ \|\| trainable%: 0\.\d{4}\n", capsys.readouterr().out
    )


def test_the_same_batch_twice_gives_the_same_logits_after_train(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    net.train()
    model.train()
    assert torch.equal(model(images), model(images))


def test_state_dict_keys_of_the_base_are_untouched(net: nn.Module) -> None:
    keys = list(net.state_dict())
    steered(net)
    assert list(net.state_dict()) == keys


def test_a_copy_steers_by_its_own_rsps(net: nn.Module, images: Tensor) -> None:
    model = steered(net, PLAIN)
    expected = model(images)
    twin = copy.deepcopy(model)
    shift(model)
    assert torch.equal(twin(images), expected)
    shift(twin)
    assert torch.equal(twin(images), model(images))


def test_a_pickled_model_answers_the_same(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    shift(model)
    twin = pickle.load(io.BytesIO(pickle.dumps(model)))
    assert torch.equal(twin(images), model(images))


def test_attributes_of_the_base_are_reachable(net: nn.Module) -> None:
    model = steered(net)
    assert model.fc is net.fc
    with pytest.raises(AttributeError):
        _ = model.no_such_thing


def test_rsps_stay_fp32_in_a_bf16_model_and_identity_is_exact(net: nn.Module, images: Tensor) -> None:
    half = net.to(torch.bfloat16)
    expected = half(images.bfloat16())
    model = steered(half, PLAIN).to(torch.bfloat16)
    assert torch.equal(model(images.bfloat16()), expected)
    assert {p.dtype for p in model.adapter_parameters()} == {torch.float32}


def test_a_missing_depth_names_those_there_are(net: nn.Module) -> None:
    before = facts(net)
    with pytest.raises(BoundaryNotFoundError, match=r"depth 7.*0\.\.3"):
        get_spear_model(net, SpearConfig(boundaries=(0, 7)))
    assert_same(before, facts(net))


def test_a_second_attachment_is_refused(net: nn.Module) -> None:
    get_spear_model(net)
    with pytest.raises(AlreadySteeredError, match="unload"):
        get_spear_model(net)


def test_a_compiled_base_is_refused_with_the_remedy(net: nn.Module) -> None:
    with pytest.raises(CompiledBaseError, match=r"get_spear_model.*first"):
        get_spear_model(torch.compile(net, backend="eager"))  # pyright: ignore[reportArgumentType]


def test_data_parallel_is_refused(net: nn.Module) -> None:
    with pytest.raises(LaunchError, match=r"model\.module"):
        get_spear_model(nn.DataParallel(net))


def test_a_boundary_that_stops_firing_raises(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    net.layer1 = nn.Sequential(nn.Identity())  # what a pruned or swapped stage looks like to the hooks
    with pytest.raises(BoundaryNotFiredError, match="ran 0 times"):
        model(images)


def test_merge_raises_with_the_reason(net: nn.Module) -> None:
    with pytest.raises(MergeError, match="skip connections"):
        steered(net).merge_and_unload()


def test_adapters_switch_and_compose(net: nn.Module, images: Tensor) -> None:
    source = net(images)
    model = steered(net, PLAIN, adapter_name="fog")
    model.add_adapter("snow", PLAIN)
    shift(model, "fog")
    shift(model, "snow", -0.05)
    fog = model(images)
    model.set_adapter("snow")
    snow = model(images)
    model.set_adapter(["fog", "snow"])
    both = model(images)
    model.set_adapter(None)
    assert torch.equal(model(images), source)
    assert not torch.equal(fog, snow)
    assert not torch.equal(both, fog)


def test_deleting_the_active_adapter_leaves_the_source(net: nn.Module, images: Tensor) -> None:
    source = net(images)
    model = steered(net, PLAIN)
    model.add_adapter("other", PLAIN)
    shift(model, "other")
    model.delete_adapter("default")
    assert model.active_adapter is None
    assert torch.equal(model(images), source)


@pytest.mark.parametrize("name", ["", "fog.5", "a/b", "base", "a\\b"])
def test_names_that_could_break_files_are_refused(net: nn.Module, name: str) -> None:
    with pytest.raises(AdapterNameError, match="not allowed"):
        get_spear_model(net, adapter_name=name)


def test_unknown_and_taken_names_are_refused(net: nn.Module) -> None:
    model = get_spear_model(net)
    with pytest.raises(AdapterNotFoundError, match="no adapter 'fog' here"):
        model.set_adapter("fog")
    with pytest.raises(AdapterNameError, match="exists already"):
        model.add_adapter("default")


def test_adapters_of_different_alpha_do_not_compose(net: nn.Module) -> None:
    model = steered(net, SpearConfig(alpha=0.5))
    model.add_adapter("other", SpearConfig(alpha=0.1))
    with pytest.raises(ConfigError, match="different alpha"):
        model.set_adapter(["default", "other"])
    assert model.active_adapters == ["default"]


def test_snapshot_and_restore(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    shift(model)
    saved, expected = model.snapshot(), model(images)
    shift(model)
    model.restore(saved)
    assert torch.equal(model(images), expected)
    model.reset_adapter()
    assert all(float(rsp.deviation().detach()) == 0 for several in model.rsps().values() for rsp in several)


def test_boundaries_given_by_the_user_are_completed_and_used(net: nn.Module) -> None:
    model = get_spear_model(net, boundaries=[Boundary(0, "mine", "layer1.0"), Boundary(1, "next", "layer2.0")])
    assert [(b.name, b.channels) for b in model.boundaries] == [("mine", 8), ("next", 16)]


def test_calling_after_unload_raises(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    model.unload()
    with pytest.raises(RuntimeError, match="unloaded"):
        model(images)
