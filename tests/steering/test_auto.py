"""AutoSpearModel: base and adapter from one name, from folders and from the Hub."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification

from spear_hf import SpearConfig, get_spear_model, load_base_model
from spear_hf.backbones.origin import Origin, origin_of
from spear_hf.errors import AdapterFormatError, BaseModelMismatchError, ModelNotFoundError
from spear_hf.steering.auto import AutoSpearModel
from spear_hf.steering.model import SpearModel
from tests.hub_server import LoopbackHub


def tiny_resnet(seed: int = 0) -> ResNetForImageClassification:
    torch.manual_seed(seed)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
    return ResNetForImageClassification(config).eval()


def learned(base: nn.Module) -> SpearModel:
    model = get_spear_model(base, SpearConfig(alpha=0.0))
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(0.1)
    return model


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def logits(model: nn.Module, x: Tensor) -> Tensor:
    return getattr(model(x), "logits", model(x))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def base_on_hub(hub: LoopbackHub, tmp_path: Path) -> Callable[[int], str]:
    """Commits the tiny ResNet of a seed as "me/base"; returns the commit."""

    def put(seed: int) -> str:
        tiny_resnet(seed).save_pretrained(tmp_path / f"base{seed}")
        return hub.put("me/base", files_of(tmp_path / f"base{seed}"))

    return put


@pytest.mark.slow
def test_the_base_is_built_at_the_commit_it_was_learned_on(
    hub: LoopbackHub, base_on_hub: Callable[[int], str], x: Tensor
) -> None:
    commit = base_on_hub(0)
    model = learned(AutoModelForImageClassification.from_pretrained("me/base"))
    model.push_to_hub("me/fog")
    base_on_hub(1)  # other weights under the same name
    again = AutoSpearModel.from_pretrained("me/fog")
    assert torch.equal(logits(again, x), logits(model, x))
    assert again.peft_config == model.peft_config
    assert f'"base_model_revision": "{commit}"' in hub.head("me/fog")["adapter_config.json"].decode()
    assert "base_model: me/base\n" in hub.head("me/fog")["README.md"].decode()


def test_another_base_by_name_is_held_against_the_fingerprint(
    hub: LoopbackHub, base_on_hub: Callable[[int], str], tmp_path: Path
) -> None:
    base_on_hub(0)
    folder = learned(load_base_model("me/base")).save_pretrained(tmp_path / "fog")
    tiny_resnet(5).save_pretrained(tmp_path / "other")
    with pytest.raises(BaseModelMismatchError, match="other weights"):
        AutoSpearModel.from_pretrained(folder, base_model=str(tmp_path / "other"))


@pytest.mark.slow
def test_a_timm_base_from_the_hub(hub: LoopbackHub, tmp_path: Path, x: Tensor) -> None:
    torch.manual_seed(0)
    net = timm.create_model("resnet10t", num_classes=4)
    timm.models.save_for_hf(net, tmp_path / "timm", safe_serialization=True)
    hub.put("timm/tiny.fog", files_of(tmp_path / "timm"))
    model = learned(load_base_model("timm/tiny.fog"))
    model.push_to_hub("me/fog")
    again = AutoSpearModel.from_pretrained("me/fog")
    assert torch.equal(again(x), model(x))
    assert "- timm\n" in hub.head("me/fog")["README.md"].decode()


def test_a_base_folder_is_named_by_a_local_adapter_and_never_by_one_from_the_hub(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: Tensor
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_resnet().save_pretrained("models/tiny")
    model = learned(load_base_model("models/tiny"))
    model.save_pretrained("fog")
    assert torch.equal(logits(AutoSpearModel.from_pretrained("fog"), x), logits(model, x))
    hub.put("you/fog", files_of(tmp_path / "fog"))
    with pytest.raises(AdapterFormatError, match=r"'\./models/tiny', a place here"):
        AutoSpearModel.from_pretrained("you/fog")
    assert logits(AutoSpearModel.from_pretrained("you/fog", base_model="models/tiny"), x).shape == (2, 4)


def test_a_model_of_ones_own_says_how_to_go_on(net: nn.Module, tmp_path: Path) -> None:
    folder = learned(net).save_pretrained(tmp_path / "fog")
    with pytest.raises(AdapterFormatError, match=r"how to build its base, a TinyNet; pass base_model"):
        AutoSpearModel.from_pretrained(folder)


@pytest.mark.slow
def test_weights_from_a_checkpoint_are_not_taken_for_the_tags(tmp_path: Path) -> None:
    torch.manual_seed(0)
    from safetensors.torch import save_file

    save_file(timm.create_model("resnet10t").state_dict(), tmp_path / "w.safetensors")
    model = load_base_model("resnet10t", checkpoint=tmp_path / "w.safetensors")
    assert origin_of(model) == Origin("timm", "resnet10t")
    folder = learned(model).save_pretrained(tmp_path / "fog")
    assert "base_model:" not in (folder / "README.md").read_text()
    again = AutoSpearModel.from_pretrained(folder, checkpoint=tmp_path / "w.safetensors")
    assert again.get_model_status().base_class == "ResNet"


def test_it_is_not_instantiated() -> None:
    with pytest.raises(TypeError, match="from_pretrained"):
        AutoSpearModel()


def test_code_in_a_base_is_never_run_and_nobody_is_asked(
    hub: LoopbackHub, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    auto_map = {"AutoConfig": "evil.C", "AutoModelForImageClassification": "evil.M"}
    code = f"open({str(mark)!r}, 'w')\nclass C: pass\nclass M: pass\n".encode()
    config = json.dumps({"model_type": "evilnet", "auto_map": auto_map}).encode()
    hub.put("evil/base", {"config.json": config, "evil.py": code})
    folder = learned(net).save_pretrained(tmp_path / "fog", origin=Origin("transformers", "evil/base"))
    hub.put("evil/fog", files_of(folder))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("someone was asked"))
    monkeypatch.setattr("sys.stdin", StringIO("y\n" * 5))
    with pytest.raises(ModelNotFoundError):
        AutoSpearModel.from_pretrained("evil/fog")
    assert not mark.exists()
