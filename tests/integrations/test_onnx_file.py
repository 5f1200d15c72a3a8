"""ONNX files: what they answer, what they hold, and that a wrong one is not written."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig, SpearModel
from spear_hf.errors import ConfigError, ExportError, OutputError
from spear_hf.integrations.onnx_file import OnnxFile, export_onnx
from tests.builders import TwoStages, steered

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


class Squeezed(TwoStages):
    """Its last BatchNorm sees one value of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.layers(self.stem(x)).mean((2, 3))))


class OtherwiseTraced(TwoStages):
    """Answers otherwise where a compiler looks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)


def model_of(kind: type[nn.Module]) -> SpearModel:
    """With RSPs that are no identity, and running statistics of its own."""
    torch.manual_seed(0)
    net = kind()
    net.train()(torch.randn(16, 3, 16, 16) + 1)
    model = steered(net.eval(), SpearConfig(alpha=0.5))
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return model


def runs(path: Path, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path)
    return torch.from_numpy(session.run(["logits"], {"pixel_values": x.numpy()})[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[SpearModel, OnnxFile]:
    model = model_of(Squeezed)
    return model, export_onnx(model, tmp_path_factory.mktemp("onnx") / "model.onnx", notes={"classes": ["a", "b"]})


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_file_answers_as_the_model_at_any_batch(written: tuple[SpearModel, OnnxFile], count: int) -> None:
    model, file = written
    x = torch.randn(count, 3, 16, 16)
    assert (file.input_shape, file.num_classes) == ((3, 16, 16), 10)
    torch.testing.assert_close(runs(file.path, x), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_file_names_its_adapter_and_no_path(written: tuple[SpearModel, OnnxFile]) -> None:
    proto = onnx.load(written[1].path)
    found = {entry.key: entry.value for entry in proto.metadata_props}
    assert found | {"spear_hf": ""} == {
        "adapter": '["default"]',
        "alpha": "0.5",
        "classes": '["a", "b"]',
        "spear_hf": "",
    }
    assert b".py" not in written[1].path.read_bytes()
    assert not any(node.metadata_props for node in proto.graph.node)


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("an earlier one")
    with pytest.raises(ExportError, match="the file's logits are not the model's"):
        export_onnx(model_of(OtherwiseTraced), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "an earlier one"


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output='model.pt' is not allowed; the name of the file ends in .onnx"):
        export_onnx(model_of(TwoStages), tmp_path / "model.pt")


def test_a_folder_in_its_place_is_found_before_the_export(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(OutputError, match=r"model.onnx cannot be written \(Is a directory\)"):
        export_onnx(model_of(OtherwiseTraced), tmp_path / "model.onnx")  # it would be refused by the check
