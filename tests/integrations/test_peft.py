"""PEFT and transformers read the files that spear_hf writes, with equal logits."""

import copy
import importlib.metadata
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification

from spear_hf import SpearConfig
from spear_hf.errors import AdapterFormatError, BaseModelMismatchError, MergeError
from spear_hf.steering.model import SpearModel
from tests.builders import steered

peft = pytest.importorskip("peft")
integration = pytest.importorskip("spear_hf.integrations.peft")


@pytest.fixture(autouse=True)
def registered() -> None:
    integration.register()
    integration.register()  # a second call does nothing


@pytest.fixture(scope="session")
def drawn_fog(drawn_net: tuple[nn.Module, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a learned adapter of the TinyNet of this session."""
    return saved(copy.deepcopy(drawn_net[0]), tmp_path_factory.mktemp("drawn") / "fog")


@pytest.fixture
def fog(drawn_fog: Path, tmp_path: Path) -> Path:
    """A folder with a learned adapter of `net`."""
    return Path(shutil.copytree(drawn_fog, tmp_path / "fog"))


def saved(net: nn.Module, folder: Path, seed: int = 0, **config: object) -> Path:
    """A learned adapter of `net`, which is unloaded again."""
    model = steered(net, SpearConfig(**{"alpha": 0.0, "boundaries": "all", **config}))  # pyright: ignore
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model.save_pretrained(folder)
    model.unload()
    return folder


def test_peft_answers_as_spear_does(net: nn.Module, images: Tensor, fog: Path) -> None:
    source = net(images)
    steered = SpearModel.from_pretrained(net, fog)
    expected = steered(images)
    steered.unload()
    model = peft.PeftModel.from_pretrained(net, fog).eval()
    assert torch.equal(model(images), expected)
    with model.disable_adapter():
        assert torch.equal(model(images), source)
    assert torch.equal(model.unload()(images), source)


def test_what_peft_saves_is_read_here(net: nn.Module, images: Tensor, fog: Path, tmp_path: Path) -> None:
    model = peft.PeftModel.from_pretrained(net, fog).eval()
    expected = model(images)
    model.save_pretrained(tmp_path / "again")
    again = SpearModel.from_pretrained(model.unload(), tmp_path / "again")
    assert torch.equal(again(images), expected)


def test_two_adapters_switch(net: nn.Module, images: Tensor, fog: Path, tmp_path: Path) -> None:
    snow = saved(net, tmp_path / "snow", seed=1, boundaries=(1,))
    expected = SpearModel.from_pretrained(net, snow)
    answer = expected(images)
    expected.unload()
    model = peft.PeftModel.from_pretrained(net, fog).eval()
    model.load_adapter(str(snow), "snow")
    model.set_adapter("snow")
    assert torch.equal(model(images), answer)


def test_disable_adapter_keeps_what_was_frozen_frozen(net: nn.Module, fog: Path) -> None:
    model = peft.PeftModel.from_pretrained(net, fog)
    before = [p.requires_grad for p in model.parameters()]
    with model.disable_adapter():
        pass
    assert [p.requires_grad for p in model.parameters()] == before
    assert not any(before)


@pytest.mark.slow
def test_a_block_may_be_steered_at_its_input_and_its_output(tmp_path: Path) -> None:
    import timm

    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32, num_classes=5).eval()
    folder, x = saved(net, tmp_path / "fog", num_groups=4), torch.randn(2, 3, 32, 32)
    steered = SpearModel.from_pretrained(net, folder)
    assert [(b.module, b.where) for b in steered.boundaries[:2]] == [("blocks.0", "in"), ("blocks.0", "out")]
    expected = steered(x)
    steered.unload()
    assert torch.equal(peft.PeftModel.from_pretrained(net, folder).eval()(x), expected)


def test_transformers_builds_base_and_adapter_from_the_adapters_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "base")
    base, x = AutoModelForImageClassification.from_pretrained(tmp_path / "base"), torch.randn(2, 3, 64, 64)
    folder = saved(base, tmp_path / "fog")
    expected = SpearModel.from_pretrained(base, folder)(x).logits
    model = AutoModelForImageClassification.from_pretrained(folder)
    assert torch.equal(model(x).logits, expected)


def test_statistics_that_peft_cannot_mix_are_refused(net: nn.Module, tmp_path: Path) -> None:
    folder = saved(net, tmp_path / "fog", alpha=0.5)
    with pytest.raises(AdapterFormatError, match=r"alpha=0\.5.*PEFT cannot"):
        peft.PeftModel.from_pretrained(net, folder)


def test_another_base_is_refused_here_too(net: nn.Module, fog: Path) -> None:
    with torch.no_grad():
        net.fc.weight.mul_(2)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BaseModelMismatchError, match="other weights"):
        peft.PeftModel.from_pretrained(net, fog)


def test_merging_is_refused(net: nn.Module, fog: Path) -> None:
    model = peft.PeftModel.from_pretrained(net, fog)
    with pytest.raises(MergeError, match="no weight"):
        model.merge_and_unload()


def test_an_old_peft_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version
    monkeypatch.setattr(integration, "version", lambda name: "0.19.1" if name == "peft" else installed(name))
    with pytest.raises(AdapterFormatError, match=r"peft 0\.19\.1 is too old"):
        integration.register()
