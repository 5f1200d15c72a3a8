"""Small quantised networks, and what must hold for each of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, SpearModel, get_spear_model
from spear_hf.errors import BaseModelMismatchError
from tests.builders import tiny_vit


def learns_and_comes_back(net: nn.Module, again: nn.Module, images: Tensor, folder: Path) -> None:
    """What is learned on `net` is saved and loaded onto `again`, a copy, and on nothing else."""
    tta = Spear(get_spear_model(net, SpearConfig(tau=0.0)))
    for _ in range(2):
        tta.step(images)
    assert tta.last.adapted  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    tta.model.save_pretrained(folder)
    loaded = SpearModel.from_pretrained(again, folder)
    torch.testing.assert_close(loaded(images).logits, tta.model(images).logits)
    assert any(bool((p != p.round()).any()) for p in loaded.adapter_parameters())
    for other, way in ((tiny_vit(), "floats, expected quantised"), (again, "quantised by")):
        if way == "quantised by":
            loaded.unload()
            get_spear_model(float_net := tiny_vit()).save_pretrained(folder / "floats")
            del float_net
        with pytest.raises(BaseModelMismatchError, match=way):
            SpearModel.from_pretrained(other, folder if other is not again else folder / "floats")


def torchao_net(name: str, **options: object) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    net = tiny_vit()
    quantization.quantize_(net, getattr(quantization, name)(**options))
    return net


def quanto_net(name: str, *, calibrate: Any = None, images: Tensor | None = None) -> nn.Module:
    """Quantised by quanto; with `calibrate`, a context for the calibration, its activations too."""
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    net, kind = tiny_vit(), getattr(quanto, name)
    quanto.quantize(net, weights=kind, activations=None if calibrate is None else kind)
    if calibrate is not None:
        with calibrate, quanto.Calibration():
            net(images)
    quanto.freeze(net)
    return net


def bitsandbytes_net(folder: Path, device: str = "cpu", **options: object) -> nn.Module:
    """As transformers loads it from a folder."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig, ViTForImageClassification

    if not folder.exists():
        tiny_vit().save_pretrained(folder)
    how: dict[str, object] = {"quantization_config": BitsAndBytesConfig(**options), "device_map": device}  # pyright: ignore
    return ViTForImageClassification.from_pretrained(folder, dtype=torch.float32, **how).eval()  # pyright: ignore
