from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from spear_hf import load_base_model, load_processor
from spear_hf.backbones.origin import origin_of
from spear_hf.errors import ModelNotFoundError


@pytest.fixture(scope="module")
def fine_tuned() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=4)


def same(model: nn.Module, other: nn.Module) -> bool:
    state = other.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_transformers_folder_is_loaded(embedded: Path) -> None:
    model = load_base_model(str(embedded / "resnet"))
    assert type(model).__name__ == "ResNetForImageClassification"
    assert not model.training


def test_a_transformers_folder_takes_the_weights_of_a_checkpoint(embedded: Path) -> None:
    weights = embedded / "resnet" / "model.safetensors"
    model = load_base_model(str(embedded / "resnet"), checkpoint=weights)
    assert same(model, load_base_model(str(embedded / "resnet")))
    assert load_processor(model).size == (64, 64)


@pytest.mark.parametrize("prefix", ["", "local-dir:"])
def test_a_folder_that_timm_saved_is_loaded(tmp_path: Path, fine_tuned: nn.Module, prefix: str) -> None:
    save_for_hf(fine_tuned, tmp_path)
    model = load_base_model(f"{prefix}{tmp_path}")
    assert same(model, fine_tuned)
    assert origin_of(model).library == "timm"


def test_a_hub_repo_that_timm_saved_is_loaded(tmp_path: Path, fine_tuned: nn.Module, hub: object) -> None:
    save_for_hf(fine_tuned, tmp_path)
    from huggingface_hub import create_repo, upload_folder

    create_repo("me/net")
    upload_folder(repo_id="me/net", folder_path=tmp_path)
    assert same(load_base_model("hf-hub:me/net"), fine_tuned)


KINDS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "plain.pth": lambda state: state,
    "trained.pth.tar": lambda state: {
        "epoch": 3,
        "arch": "x",
        "state_dict": {f"module.{k}": v for k, v in state.items()},
    },
    "model.pt": lambda state: {"model": {f"_orig_mod.{k}": v for k, v in state.items()}, "optimizer": {"state": {}}},
    "lightning.ckpt": lambda state: {
        "state_dict": {f"model.{k}": v for k, v in state.items()} | {"loss.weight": torch.ones(2)}
    },
    "old.bin": lambda state: {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_any_kind_brings_its_head(tmp_path: Path, fine_tuned: nn.Module, kind: str) -> None:
    torch.save(KINDS[kind](fine_tuned.state_dict()), tmp_path / kind)
    model = load_base_model("test_resnet", checkpoint=tmp_path / kind)
    assert same(model, fine_tuned)
    assert model.num_classes == 4


def test_a_safetensors_checkpoint_is_loaded(tmp_path: Path, fine_tuned: nn.Module) -> None:
    save_file(fine_tuned.state_dict(), tmp_path / "weights.safetensors")
    assert same(load_base_model("test_resnet", checkpoint=tmp_path / "weights.safetensors", num_classes=4), fine_tuned)


def test_a_torchvision_name_is_built_with_its_own_preprocessing() -> None:
    model = load_base_model("torchvision:squeezenet1_1", pretrained=False, num_classes=7)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    assert load_processor(model).mean == pytest.approx((0.485, 0.456, 0.406))
    assert origin_of(model).name == "torchvision:squeezenet1_1"


def test_a_backbone_without_a_trained_head_is_refused(tmp_path: Path, embedded: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(embedded / "vit").save_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no weights for classifier.*answers would be random"):
        load_base_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnett", "no architecture of timm or torchvision.*did you mean"),
        ("./nowhere", "is no folder"),
        ("tests", "holds no config.json"),
        ("os:system", "no architecture"),
    ],
)
def test_a_name_that_is_nothing_says_what_could_be_meant(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        load_base_model(name)


def test_a_private_or_missing_repo_names_the_login(hub: object) -> None:
    with pytest.raises(ModelNotFoundError, match="hf auth login"):
        load_base_model("someone/secret")


def test_a_head_that_was_never_trained_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="never trained; pass checkpoint="):
        load_base_model("test_resnet", num_classes=4)


def test_a_checkpoint_with_another_number_of_classes_than_asked_is_refused(
    tmp_path: Path, fine_tuned: nn.Module
) -> None:
    torch.save(fine_tuned.state_dict(), tmp_path / "w.pth")
    with pytest.raises(ModelNotFoundError, match="has 4 classes, num_classes=5"):
        load_base_model("test_resnet", checkpoint=tmp_path / "w.pth", num_classes=5)


def test_weights_with_nan_are_refused(tmp_path: Path, fine_tuned: nn.Module) -> None:
    state = fine_tuned.state_dict() | {"fc.bias": torch.full((4,), float("nan"))}
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ModelNotFoundError, match=r"w.pth has NaN in fc.bias, so the model's logits are not finite"):
        load_base_model("test_resnet", checkpoint=tmp_path / "w.pth")
