import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spear_hf import SpearConfig, get_spear_model
from spear_hf.errors import AdapterFormatError, AdapterLoadError, AdapterSaveError, BaseModelMismatchError, SpearError
from spear_hf.steering.model import SpearModel
from tests.builders import TinyBlock, TinyNet

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def rewrite(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def retensor(folder: Path, change: object) -> None:
    path = folder / WEIGHTS
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
    tensors = load_file(path)
    change(tensors)  # pyright: ignore[reportCallIssue]
    save_file(tensors, path, metadata)


def assert_untouched(net: nn.Module) -> None:
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_a_loaded_adapter_answers_bit_for_bit_as_the_saved_one(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    model = get_spear_model(net)
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(0.1)
    expected = model(images)
    folder = model.save_pretrained(tmp_path / "fog")
    again = SpearModel.from_pretrained(model.unload(), folder)
    assert torch.equal(again(images), expected)


def test_the_folder_holds_three_files_and_peft_readable_keys(saved: Path) -> None:
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", CONFIG, WEIGHTS]
    assert sorted(load_file(saved / WEIGHTS)) == [
        "base_model.model.layer2.0.spear_beta",
        "base_model.model.layer2.0.spear_gamma",
        "base_model.model.stem.2.spear_beta",
        "base_model.model.stem.2.spear_gamma",
    ]


def test_saving_twice_gives_equal_bytes(net: nn.Module, saved: Path, tmp_path: Path) -> None:
    again = SpearModel.from_pretrained(net, saved).save_pretrained(tmp_path / "again")
    assert all((again / p.name).read_bytes() == p.read_bytes() for p in saved.iterdir())


def test_other_weights_of_the_same_architecture_are_refused(saved: Path) -> None:
    torch.manual_seed(5)
    other = TinyNet()
    with pytest.raises(BaseModelMismatchError, match=r"other weights .* expected"):
        SpearModel.from_pretrained(other, saved)
    assert_untouched(other)


def test_another_architecture_is_refused(saved: Path) -> None:
    other = TinyNet()
    other.fc = nn.Linear(24, 7)
    with pytest.raises(BaseModelMismatchError, match="another structure"):
        SpearModel.from_pretrained(other, saved)


def test_another_base_is_accepted_on_purpose_but_never_other_channels(saved: Path) -> None:
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match="other weights"):
        SpearModel.from_pretrained(TinyNet(), saved, check_base="warn")
    wide = TinyNet()
    wide.stem = nn.Sequential(nn.Conv2d(3, 9, 3, padding=1), nn.BatchNorm2d(9), nn.ReLU())
    wide.layer1[0] = TinyBlock(9, 8, 1)
    with pytest.raises(SpearError, match="9"):
        SpearModel.from_pretrained(wide, saved, check_base="off")


def test_the_same_base_in_bf16_is_the_same_base(net: nn.Module, saved: Path, model: SpearModel, images: Tensor) -> None:
    steered = SpearModel.from_pretrained(net.to(torch.bfloat16), saved)
    torch.testing.assert_close(steered.snapshot(), model.snapshot(), rtol=0, atol=0)
    assert steered(images.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(steered(images.bfloat16()).float(), model(images), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("base_model.model.stem.2.spear_beta"), "lacks .*spear_beta"),
        (lambda t: t.update(extra=torch.ones(1)), "unexpected .*extra"),
        (lambda t: t.update({"base_model.model.stem.2.spear_beta": torch.ones(9)}), r"shape \[9\], expected .* \[8\]"),
        (lambda t: t.update({"base_model.model.stem.2.spear_beta": torch.ones(8).long()}), "I64"),
        (lambda t: t["base_model.model.stem.2.spear_beta"].fill_(float("nan")), "not finite"),
        (lambda t: t["base_model.model.stem.2.spear_beta"].fill_(1e9), "above"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(net: nn.Module, saved: Path, change: object, message: str) -> None:
    retensor(saved, change)
    with pytest.raises(AdapterLoadError, match=message):
        SpearModel.from_pretrained(net, saved)
    assert_untouched(net)


@pytest.mark.parametrize(
    "junk", [b"", b"\x00" * 4, b"\xff" * 64, struct.pack("<Q", 2) + b"[]", b"PK\x03\x04" + b"0" * 60]
)
def test_a_corrupt_tensor_file_is_refused(net: nn.Module, saved: Path, junk: bytes) -> None:
    (saved / WEIGHTS).write_bytes(junk)
    with pytest.raises(AdapterFormatError, match="not a safetensors file"):
        SpearModel.from_pretrained(net, saved)
    assert_untouched(net)


def test_a_truncated_tensor_file_is_refused(net: nn.Module, saved: Path) -> None:
    raw = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(raw[:-8])
    with pytest.raises(AdapterFormatError, match="cannot be read"):
        SpearModel.from_pretrained(net, saved)


def test_weights_and_configuration_of_different_adapters_are_refused(net: nn.Module, saved: Path) -> None:
    config = json.loads((saved / CONFIG).read_text())
    rewrite(saved, spear_config={**config["spear_config"], "alpha": 0.25})
    with pytest.raises(AdapterFormatError, match="to different adapters"):
        SpearModel.from_pretrained(net, saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LORA"}, "peft_type 'LORA'"),
        ({"format_version": 99}, "upgrade"),
        ({"spear_config": {"nonsense": 1}}, "no field 'nonsense'"),
        ({"boundaries": [{"depth": 0, "hook": "os.system"}]}, "invalid entry"),
        ({"base_model_fingerprint": {}}, "invalid entry"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(net: nn.Module, saved: Path, changes: dict, message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(AdapterFormatError, match=message):
        SpearModel.from_pretrained(net, saved)
    assert_untouched(net)


def test_a_missing_folder_and_a_folder_of_adapters_say_what_is_there(net: nn.Module, saved: Path) -> None:
    with pytest.raises(AdapterFormatError, match="there is no folder"):
        SpearModel.from_pretrained(net, saved / "nowhere")
    with pytest.raises(AdapterFormatError, match=r"holds the adapters \['fog'\]"):
        SpearModel.from_pretrained(net, saved.parent)


def test_non_finite_state_is_not_saved(net: nn.Module, tmp_path: Path) -> None:
    model = get_spear_model(net)
    next(iter(model.adapter_parameters())).data[0] = float("inf")
    with pytest.raises(AdapterSaveError, match="not finite"):
        model.save_pretrained(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_a_model_folder_is_not_saved_into(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AdapterSaveError, match=r"config\.json"):
        get_spear_model(net).save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_a_file_from_before_a_field_existed_is_read_with_its_default(net: nn.Module, saved: Path) -> None:
    config = json.loads((saved / CONFIG).read_text())
    del config["spear_config"]["evidence_images"]
    (saved / CONFIG).write_text(json.dumps(config))
    essence = {key: config[key] for key in ("boundaries", "spear_config")} | {"format_version": 1}
    save_file(load_file(saved / WEIGHTS), saved / WEIGHTS, {"spear": json.dumps(essence)})
    model = SpearModel.from_pretrained(net, saved)
    assert model.peft_config["default"].evidence_images == SpearConfig().evidence_images
