"""Export.

The RSPs are inside the file, which learns nothing. An ONNX file is run by onnxruntime at batch 1, 3 and 16 before it is
in its place (extra `export`). What a stream remembers is not in it: alpha mixes the statistics of each batch alone.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig, SpearModel, get_spear_model
from spear_hf.errors import ExportError
from tests.builders import TwoStages, steered, tiny_vit
from tests.support.table import refused, works
from tests.two_towers import LABELS, tiny_clip, tiny_siglip2, word_tokenizer

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason='onnx, onnxscript or onnxruntime is not installed: pip install "spear-hf[export]"',
)


class Branching(TwoStages):
    """Which way the forward takes depends on the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(x.mean() > 0) else -x)


def moved(net: nn.Module, alpha: float = 0.5) -> SpearModel:
    """`net` with RSPs that are no identity."""
    model = steered(net.eval(), SpearConfig(alpha=alpha))
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return model


@pytest.mark.slow
@works("`torch.export.export(model, ..., strict=True)` with a dynamic batch, alpha > 0", "the model's logits")
def test_strict_export_with_a_dynamic_batch() -> None:
    model, x = moved(TwoStages()), torch.randn(2, 3, 16, 16)
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=True).module()
    for count in (1, 3, 16):
        x = torch.randn(count, 3, 16, 16)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


@needs_onnx
@pytest.mark.slow
@works("ONNX of a network with BatchNorm, alpha > 0, any batch", "`spear-hf export MODEL --adapter A model.onnx`")
def test_onnx_of_a_network_with_batch_norm(tmp_path: Path) -> None:
    from spear_hf.integrations.onnx_file import export_onnx

    file = export_onnx(moved(TwoStages()), tmp_path / "net.onnx")
    assert list(file.differences) == [1, 3, 16]
    assert max(file.differences.values()) < 1e-4


@needs_onnx
@pytest.mark.slow
@works("ONNX of a vision transformer", "`export_onnx(model, path)`", on="a random ViT of transformers")
def test_onnx_of_a_transformer(tmp_path: Path) -> None:
    from spear_hf.integrations.onnx_file import export_onnx

    file = export_onnx(moved(tiny_vit()), tmp_path / "vit.onnx")
    assert (file.input_shape, file.num_classes) == ((3, 32, 32), 2)
    assert max(file.differences.values()) < 1e-4


@needs_onnx
@pytest.mark.slow
@works("ONNX of a zero-shot CLIP with its labels", "images in, a logit for each label out", on="a small random CLIP")
def test_onnx_of_a_zero_shot_model(tmp_path: Path) -> None:
    from spear_hf.integrations.onnx_file import export_onnx

    model = get_spear_model(tiny_clip(), labels=LABELS, processor=word_tokenizer())
    file = export_onnx(model, tmp_path / "clip.onnx")
    assert file.num_classes == len(LABELS)
    assert max(file.differences.values()) < 1e-4


@needs_onnx
@refused("ONNX of a model of several inputs, SigLIP 2's NaFlex", ExportError, "models that take one batch of images")
def test_onnx_of_a_model_of_several_inputs(tmp_path: Path) -> None:
    from spear_hf.integrations.onnx_file import export_onnx

    model = get_spear_model(tiny_siglip2(), labels=LABELS, processor=word_tokenizer())
    export_onnx(model, tmp_path / "naflex.onnx")


@needs_onnx
@pytest.mark.slow
@refused("ONNX of a model whose forward branches on pixels", ExportError, "cannot be written as ONNX")
def test_onnx_of_a_branching_model(tmp_path: Path) -> None:
    from spear_hf.integrations.onnx_file import export_onnx

    export_onnx(moved(Branching()), tmp_path / "branching.onnx")
