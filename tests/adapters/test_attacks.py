"""Malicious files: each is refused before a tensor is read, and the model is unchanged."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.errors import AdapterError, AdapterFormatError, AdapterLoadError, BaseModelMismatchError, SpearError
from spear_hf.steering.model import SpearModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
GAMMA = "base_model.model.stem.2.spear_gamma"


def reconfigure(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the configuration, and the header to match, as an attacker would."""
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))
    essence = {key: config[key] for key in ("boundaries", "spear_config")} | {"format_version": 1}
    reheader(folder, lambda header: header.update(__metadata__={"spear": json.dumps(essence, sort_keys=True)}))


def reheader(folder: Path, change: Callable[[dict[str, Any]], object], *, body: bytes | None = None) -> None:
    raw = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + (raw[8 + length :] if body is None else body))


def assert_refused(net: nn.Module, folder: Path, error: type[SpearError], message: str) -> None:
    with pytest.raises(error, match=message):
        SpearModel.from_pretrained(net, folder)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", "0"),
        ("depth", True),
        ("depth", -1),
        ("part", 10**6),
        ("channels", 0),
        ("channels", 10**12),
        ("channels", 8.0),
        ("channel_axis", 99),
        ("where", "around"),
        ("module", ["stem", 2]),
        ("module", "stem.2\nimport os"),
        ("module", "x" * 2000),
        ("name", {"a": 1}),
        ("output_slot", [{"a": 1}]),
        ("hook", "os.system"),
    ],
)
def test_a_boundary_of_another_type_or_range_is_refused(net: nn.Module, saved: Path, field: str, value: object) -> None:
    reconfigure(saved, lambda config: config["boundaries"][0].update({field: value}))
    assert_refused(net, saved, AdapterFormatError, "invalid entry")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(auto_map={"AutoModel": "evil.Model"}), r"unknown \['auto_map'\]"),
        (lambda c: c.update(trust_remote_code=True), "trust_remote_code"),
        (lambda c: c.update(base_model_library="os"), "invalid entry"),
        (lambda c: c.update(base_model_name_or_path=["a"]), "invalid entry"),
        (lambda c: c.update(format_version="1"), "upgrade"),
        (lambda c: c.update(boundaries={}), "invalid entry|no boundary"),
        (lambda c: c.update(boundaries=c["boundaries"] * 2), "contain a duplicate"),
        (lambda c: c["spear_config"].update(boundaries="(a+)+$"), "names"),
        (lambda c: c["spear_config"].update(learning_rate=1e999), "not JSON|not a JSON number|not allowed"),
        (lambda c: c["spear_config"].update(learning_rate="1"), "not allowed"),
    ],
)
def test_a_configuration_with_unknown_or_invalid_entries_is_refused(
    net: nn.Module, saved: Path, change: Any, message: str
) -> None:
    reconfigure(saved, change)
    assert_refused(net, saved, AdapterFormatError, message)


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "\x9b31m", "\ud800", "a\u202etxt.exe", "a\u2028b", "a\x00b", "x" * 1001]
)
@pytest.mark.parametrize("field", ["base_model_class", "base_model_name_or_path", "spear_version"])
def test_a_name_that_a_terminal_or_a_reader_cannot_take_is_refused(
    net: nn.Module, saved: Path, field: str, name: str
) -> None:
    reconfigure(saved, lambda config: config.update({field: name}))
    assert_refused(net, saved, AdapterFormatError, "is not a line of text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"peft_type": "SPEAR", "peft_type": "SPEAR"}', "is repeated"),
        ('{"a": NaN}', "not a JSON number"),
        ("\xff\xfe", "peft_type|not JSON"),
        (" " * 1_000_001, "1,000,001 bytes"),
        ("null", "peft_type 'NoneType'"),
    ],
)
def test_malicious_json_is_refused(net: nn.Module, saved: Path, text: str, message: str) -> None:
    (saved / CONFIG).write_text(text, encoding="latin-1")
    assert_refused(net, saved, AdapterFormatError, message)


@pytest.mark.parametrize("probe", [[], [float(0)] * 80, [1e400] * 80])
def test_a_fingerprint_without_weights_matches_no_base(net: nn.Module, saved: Path, probe: list[float]) -> None:
    reconfigure(saved, lambda config: config["base_model_fingerprint"].update(probe=probe))
    assert_refused(net, saved, AdapterError, "weights|not a JSON number")


def test_another_head_on_the_same_body_is_another_base(net: nn.Module, saved: Path) -> None:
    with torch.no_grad():
        net.fc.weight.mul_(1.1)  # pyright: ignore[reportAttributeAccessIssue]
        net.fc.bias.mul_(1.1)  # pyright: ignore[reportAttributeAccessIssue]
    assert_refused(net, saved, BaseModelMismatchError, "other weights")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [1 << 60, 0], "data_offsets": [0, 0]}, "shape"),
        ({"dtype": "F32", "shape": [1 << 31], "data_offsets": [0, 1 << 33]}, "shape"),
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "F8_E4M3"),
        ({"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}, "BOOL"),
        ({"dtype": "F32", "shape": [8, 1], "data_offsets": [0, 32]}, "shape"),
        ({"dtype": "F32", "shape": 8, "data_offsets": [0, 32]}, "shape"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_from_the_header_alone(
    net: nn.Module, saved: Path, entry: dict[str, Any], message: str
) -> None:
    reheader(saved, lambda header: header.update({GAMMA: entry}), body=b"")  # a file without tensor data
    assert_refused(net, saved, AdapterLoadError, message)


def test_keys_are_compared_before_a_tensor_is_read(net: nn.Module, saved: Path) -> None:
    reheader(saved, lambda header: header.pop(GAMMA), body=b"")
    assert_refused(net, saved, AdapterLoadError, "lacks .*spear_gamma")


def test_a_header_that_claims_the_memory_of_the_machine_is_refused(net: nn.Module, saved: Path) -> None:
    (saved / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    assert_refused(net, saved, AdapterFormatError, "a header of")


def test_overlapping_tensors_are_refused(net: nn.Module, saved: Path) -> None:
    def overlap(header: dict[str, Any]) -> None:
        header[GAMMA]["data_offsets"] = header[GAMMA.replace("gamma", "beta")]["data_offsets"]

    reheader(saved, overlap)
    assert_refused(net, saved, AdapterFormatError, "cannot be read")


def test_a_pickle_is_not_read(net: nn.Module, saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    torch.save({GAMMA: torch.ones(8)}, saved / "adapter_model.bin")
    assert_refused(net, saved, AdapterFormatError, "only safetensors files are read")


def test_tampered_channels_are_refused_by_the_rsp_in_the_forward(net: nn.Module, saved: Path, images: Tensor) -> None:
    reconfigure(saved, lambda config: config["boundaries"][0].update(channel_axis=2))
    model = SpearModel.from_pretrained(net, saved)
    with pytest.raises(SpearError, match=r"8 channels on axis 2 met a tensor of shape \(16, 8, 16, 16\)"):
        model(images)


def test_on_another_base_the_channels_are_probed_whatever_check_base_says(net: nn.Module, saved: Path) -> None:
    with torch.no_grad():
        net.fc.weight.mul_(2)  # pyright: ignore[reportAttributeAccessIssue]
    reconfigure(saved, lambda config: config["boundaries"][0].update(channel_axis=2))
    with pytest.raises(SpearError, match="axis 2"):
        SpearModel.from_pretrained(net, saved, check_base="off")


@pytest.mark.parametrize(
    "head", [{"code": "os:system"}, {"path": [{}]}, {"labels": ["cat"]}, "os:system", {"function": 3}]
)
def test_a_head_that_is_none_is_refused(saved: Path, net: nn.Module, head: object) -> None:
    reconfigure(saved, lambda config: config.update(head=head))
    assert_refused(net, saved, AdapterFormatError, "head")


def test_a_function_in_a_file_is_never_called(saved: Path, net: nn.Module) -> None:
    reconfigure(saved, lambda config: config.update(head={"function": "os:system"}))
    assert_refused(net, saved, AdapterLoadError, "no file may name code to run")
