import copy
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import AdapterLoadError, AdapterNameError, BaseModelMismatchError, CompiledBaseError
from spear_hf.steering.model import SpearModel
from tests.builders import steered


def learned(net: nn.Module, folder: Path, by: float = 0.1, **config: object) -> Path:
    """An adapter of `net` in `folder`; the net is unloaded again."""
    model = steered(net, SpearConfig(**{"boundaries": (0, 2), "alpha": 0.0, **config}))  # pyright: ignore
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(by)
    model.save_pretrained(folder)
    model.unload()
    return folder


def test_a_loaded_adapter_joins_the_others_and_waits(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    expected = SpearModel.from_pretrained(copy.deepcopy(net), folder)(images)
    model = steered(net, SpearConfig(alpha=0.0))
    before = model(images)
    report = model.load_adapter(folder, "fog")
    assert torch.equal(model(images), before)
    model.set_adapter("fog")
    assert torch.equal(model(images), expected)
    assert (report.adapter_name, report.modules, report.num_parameters) == ("fog", ("stem.2", "layer2.0"), 48)
    assert report.gamma_deviation == pytest.approx(0.1 * 24**0.5, rel=1e-5)


def test_overwriting_keeps_parameters_and_learner_and_takes_the_configuration(
    net: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    folder = learned(net, tmp_path / "fog", alpha=0.25)
    model = steered(net, SpearConfig(boundaries=(0, 2), alpha=0.0))
    tta, parameters = Spear(model), list(model.adapter_parameters())
    model.load_adapter(folder, "default", overwrite=True)
    assert all(a is b for a, b in zip(parameters, model.adapter_parameters(), strict=True))
    torch.testing.assert_close(parameters[0].detach(), torch.full((8,), 1.1))
    fresh = SpearModel.from_pretrained(copy.deepcopy(model).unload(), folder)
    assert torch.equal(model(images), fresh(images))  # with the file's alpha
    tta.step(images)
    assert tta.last is not None
    assert tta.last.adapted


@pytest.mark.slow
def test_overwriting_reaches_a_compiled_graph(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    model = steered(net, SpearConfig(boundaries=(0, 2), alpha=0.0))
    compiled = torch.compile(model, backend="eager")
    compiled(images)
    model.load_adapter(folder, "default", overwrite=True)
    assert torch.equal(compiled(images), model(images))


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_overwritten(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    model = steered(net, SpearConfig(boundaries=(0, 1)))
    with pytest.raises(AdapterNameError, match="exists already"):
        model.load_adapter(folder, "default")
    before = model.snapshot()
    with pytest.raises(AdapterLoadError, match="does not fit adapter 'default'"):  # depths 0 and 2 into 0 and 1
        model.load_adapter(folder, "default", overwrite=True)
    torch.testing.assert_close(model.snapshot(), before, rtol=0, atol=0)
    assert model.peft_config["default"].boundaries == (0, 1)


def test_overwriting_one_of_several_with_another_alpha_is_refused(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog", alpha=0.25)
    config = SpearConfig(boundaries=(0, 2), alpha=0.0)
    model = steered(net, config)
    model.add_adapter("other", config)
    model.set_adapter(["default", "other"])
    with pytest.raises(AdapterLoadError, match=r"alpha=0\.25"):
        model.load_adapter(folder, "default", overwrite=True)
    assert float(model.snapshot("default")["0.gamma"].max()) == 1


def test_an_adapter_of_another_base_does_not_join(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    with torch.no_grad():
        net.fc.weight.mul_(2)  # pyright: ignore[reportAttributeAccessIssue]
    model = steered(net)
    with pytest.raises(BaseModelMismatchError, match="other weights"):
        model.load_adapter(folder, "fog")
    assert list(model.peft_config) == ["default"]


def test_an_identity_that_is_loaded_is_said_to_be_one(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog", by=0.0)
    with pytest.warns(UserWarning, match="is the identity"):
        SpearModel.from_pretrained(net, folder)


def test_loading_on_the_right_base_runs_one_forward_of_one_image(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    calls: list[int] = []
    net.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    SpearModel.from_pretrained(net, folder)
    assert calls == [1]


@pytest.mark.slow
def test_a_compiled_base_is_refused_before_its_weights_are_compared(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    with pytest.raises(CompiledBaseError, match="first"):
        SpearModel.from_pretrained(torch.compile(net, backend="eager"), folder)  # pyright: ignore[reportArgumentType]


def test_an_adapter_of_a_timm_model_steers_transformers_wrapper_around_it(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.timm_model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.timm_model(x)

    torch.manual_seed(0)
    net = timm.create_model("resnet10t", num_classes=10).eval()
    folder, x = learned(net, tmp_path / "fog"), torch.randn(2, 3, 64, 64)
    expected = SpearModel.from_pretrained(net, folder)
    answer = expected(x)
    wrapped = SpearModel.from_pretrained(Wrapper(expected.unload()), folder)
    assert torch.equal(wrapped(x), answer)
    wrapped.save_pretrained(tmp_path / "again")
    assert torch.equal(SpearModel.from_pretrained(wrapped.unload().timm_model, tmp_path / "again")(x), answer)


def test_modules_that_were_renamed_are_matched_by_depth(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    folder = learned(net, tmp_path / "fog")
    expected = SpearModel.from_pretrained(copy.deepcopy(net), folder)(images)

    class Renamed(nn.Module):
        def __init__(self, old: nn.Module) -> None:
            super().__init__()
            self.entry, self.a, self.b, self.c = old.stem, old.layer1, old.layer2, old.layer3
            self.head = old.fc

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.c(self.b(self.a(self.entry(x)))).mean((2, 3)))  # pyright: ignore

    model = SpearModel.from_pretrained(Renamed(net).eval(), folder)  # the same weights are the same base
    assert torch.equal(model(images), expected)
