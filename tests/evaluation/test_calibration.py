"""A configuration from clean images."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spear_hf import Calibration, GuardPolicy, SpearConfig, calibrate, load_processor
from spear_hf.backbones.fingerprint import fingerprint
from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation.calibration.calibration import check_config_fits, read_config
from tests.builders import TwoStages, pictures, steered

HALF = load_processor(None, mean=[0.5] * 3, std=[0.5] * 3, size=16)
IMAGES = HALF(torch.from_numpy(pictures(64, side=16) // 8 + pictures(64, side=1, seed=1) // 2)).split(32)
FEW: dict[str, Any] = {"processor": HALF, "corruptions": "brightness", "progress": False}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    net = TwoStages()
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = None
    with torch.no_grad():
        net(torch.cat(IMAGES))
        net.fc.bias -= net.eval()(torch.cat(IMAGES)).mean(0)  # so that not all are of one class
    return net


@pytest.fixture(scope="module")
def found(net: nn.Module) -> Calibration:
    return Calibration.of(net, IMAGES, **FEW)


def test_every_value_is_tried_and_has_its_reason(found: Calibration) -> None:
    rows = {row.name: row for row in found.tried}
    sure = f"tau={round(found.entropy[1], 4):g}"
    alphas, rates = ["alpha=0.25", "alpha=0.75", "alpha=1"], [f"learning_rate={rate}" for rate in (0.01, 0.04, 0.08)]
    assert list(rows) == ["source", "SpearConfig()", *alphas, sure, *rates]
    assert rows["source"].clean == 0
    assert all(rows[name].chosen != bool(rows[name].why) for name in (*alphas, *rates))


def test_what_was_chosen_is_the_configuration(found: Calibration) -> None:
    changed = found.config.to_dict().items() - SpearConfig().to_dict().items()
    assert {f"{name}={value:g}" for name, value in changed} == {row.name for row in found.tried if row.chosen}


def test_the_model_is_as_it_was(net: nn.Module, found: Calibration) -> None:
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_the_file_holds_the_configuration_and_the_policy(found: Calibration, tmp_path: Path) -> None:
    path = found.save(tmp_path / "new" / "calibration.json")
    assert read_config(path) == (found.config, found.policy)
    assert json.loads(path.read_text())["calibration"]["images"] == 64


def test_a_plain_configuration_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(SpearConfig(alpha=0.75).to_json())
    assert read_config(tmp_path / "c.json") == (SpearConfig(alpha=0.75), None)


@pytest.mark.parametrize(
    "text", ["[]", '{"config": 3}', '{"config": {}, "guard": []}', '{"alhpa": 1}', '{"config": {}, "gaurd": {}}', "{"]
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ConfigError, match=r"c\.json' is no file of spear-hf calibrate"):
        read_config(tmp_path / "c.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read .* give a file of spear-hf calibrate"):
        read_config(tmp_path / "c.json")


def test_a_steered_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="a SpearModel was given; calibrate takes the base"):
        calibrate(steered(TwoStages()), IMAGES, **FEW)


def test_one_batch_shows_nothing_that_was_learned(net: nn.Module) -> None:
    with pytest.raises(DataError, match=r"all 64 images came in one batch, .* smaller batches that you will adapt"):
        calibrate(net, [torch.cat(IMAGES)], **FEW)


@pytest.mark.parametrize(("name", "value"), [("config", {"alpha": 1.0}), ("policy", {"margin": 0.1})])
def test_settings_of_another_kind_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a dict; give a "):
        Calibration.of(TwoStages(), IMAGES, **FEW, **{name: value})


def test_answers_that_are_not_finite_are_no_labels(net: nn.Module) -> None:
    broken = copy.deepcopy(net)
    with torch.no_grad():
        broken.fc.bias[3] = torch.nan
    with pytest.raises(DataError, match="answers clean images with NaN or infinity"):
        calibrate(broken, IMAGES, **FEW)


def test_one_class_says_nothing(net: nn.Module) -> None:
    class OfOneClass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) + 1e3 * torch.eye(10)[3]

    with pytest.raises(DataError, match="all 64 clean images are answered with class 3"):
        calibrate(OfOneClass(), IMAGES, **FEW)


def test_nothing_is_chosen_under_the_wrong_mean_and_std(net: nn.Module) -> None:
    wrong = load_processor(None, mean=[0.0] * 3, std=[1.0] * 3, size=16)
    images = [(x + 1) / 2 for x in IMAGES]
    with pytest.warns(UserWarning, match=r"preprocessing looks wrong: .* pass mean=0.5 and std=0.5"):
        found = Calibration.of(net, images, **FEW | {"processor": wrong})
    assert [row.name for row in found.tried] == ["source", "SpearConfig()"]
    assert (found.config, found.policy) == (SpearConfig(), GuardPolicy())


def test_a_file_says_for_which_model_and_batch_size_it_was_made(tmp_path: Path) -> None:
    net, other = nn.Linear(4, 3), nn.Linear(4, 3)
    facts = fingerprint(net).to_dict()
    found = Calibration(SpearConfig(), GuardPolicy(), (), (), None, 256, 16, ("fog",), (0.1, 0.2), facts)
    path = found.save(tmp_path / "c.json")
    check_config_fits(path, net, 16)
    with pytest.warns(UserWarning, match="at batch size 16, and this run has 8"):
        check_config_fits(path, net, 8)
    with pytest.raises(ConfigError, match="was calibrated for another model: this one has other weights"):
        check_config_fits(path, other, 16)
