from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spear_hf import load_base_model
from spear_hf.errors import ModelNotFoundError


def test_a_transformers_folder_is_loaded(embedded: Path) -> None:
    model = load_base_model(str(embedded / "resnet"))
    assert type(model).__name__ == "ResNetForImageClassification"
    assert not model.training


def test_a_timm_name_takes_a_checkpoint(tmp_path: Path) -> None:
    state = load_base_model("cifar_resnet26", pretrained=False).state_dict()
    save_file(state, tmp_path / "weights.safetensors")
    again = load_base_model("cifar_resnet26", checkpoint=tmp_path / "weights.safetensors")
    assert all(torch.equal(v, state[k]) for k, v in again.state_dict().items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnett", "no timm architecture.*did you mean"),
        ("./nowhere", "is no folder"),
        ("tests", "holds no config.json"),
    ],
)
def test_a_name_that_is_nothing_says_what_could_be_meant(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        load_base_model(name)


def test_a_checkpoint_that_is_missing_or_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no checkpoint"):
        load_base_model("cifar_resnet26", checkpoint=tmp_path / "none.safetensors")
    save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelNotFoundError, match="does not fit CifarResNet"):
        load_base_model("cifar_resnet26", checkpoint=tmp_path / "other.safetensors")
