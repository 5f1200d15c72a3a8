"""spear-hf export."""

from pathlib import Path

import pytest
import torch

from spear_hf import SpearConfig
from tests.builders import printed, spear_hf, steered, tiny_resnet

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

MODEL = "tests.builders:tiny_resnet"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    model = steered(tiny_resnet(), SpearConfig(alpha=0.5))
    with torch.no_grad():
        next(model.adapter_parameters()).mul_(1.5)
    return model.save_pretrained(tmp_path / "fog")


@pytest.mark.slow
def test_export_writes_a_file_that_says_what_it_is(adapter: Path, tmp_path: Path) -> None:
    words = ("export", MODEL, tmp_path / "model.onnx", "--adapter", adapter, "--image-size", "32")
    found = printed(*words)
    assert (found["input_shape"], found["num_classes"], found["adapter"]) == ([3, 32, 32], 5, "fog")
    assert list(found["differences"]) == ["1", "3", "16"]
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert (kept["adapter"], kept["alpha"]) == ("fog", "0.5")


def test_export_refuses_another_ending(adapter: Path, tmp_path: Path) -> None:
    done = spear_hf("export", MODEL, tmp_path / "model.bin", "--adapter", adapter)
    assert done.exit_code == 2
    assert "the name of the file ends in .onnx" in done.stderr
    assert not (tmp_path / "model.bin").exists()
