from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import AdapterNotFoundError, BaseModelMismatchError, InputError
from spear_hf.learning.bank import AdapterBank, score_of
from tests.builders import steered
from tests.hub_server import LoopbackHub

CONFIG = SpearConfig(alpha=0.0, boundaries="all", tau=0.0)


def saved(net: nn.Module, folder: Path, gamma: float, depth: int = 3, beta: float | Tensor = 0.0) -> Path:
    """An adapter with this gamma and beta at one depth; `net` is unloaded again."""
    model = steered(net, SpearConfig(alpha=0.0, boundaries=(depth,)))
    with torch.no_grad():
        for rsp in model.rsps()[depth]:
            rsp.gamma.fill_(gamma)
            rsp.beta += beta
    model.save_pretrained(folder)
    model.unload()
    return folder


@pytest.fixture
def bank(net: nn.Module, images: Tensor, tmp_path: Path) -> AdapterBank:
    """ "sharp" makes the answers clearer, "dull" makes every answer the same."""
    mean = nn.Sequential(*list(net.children())[:4])(images).detach().mean((0, 2, 3))  # at depth 3
    sources = saved(net, tmp_path / "sharp", 100.0, beta=-100 * mean), saved(net, tmp_path / "dull", 0.0)
    return AdapterBank.from_pretrained(net, *sources, config=CONFIG)


def test_clear_and_varied_answers_carry_all_information_and_others_none() -> None:
    clear = 100 * torch.eye(4).repeat(3, 1)
    assert score_of("clear", clear).information == pytest.approx(1.0)
    assert score_of("unsure", torch.zeros(12, 4)).information == pytest.approx(0.0, abs=1e-6)
    same = score_of("same", 100 * torch.eye(4)[:1].repeat(12, 1))
    assert (same.entropy, same.concentration) == pytest.approx((0.0, 1.0), abs=1e-6)
    half = score_of("half", 100 * torch.eye(4)[:2].repeat(6, 1))
    assert half.information == pytest.approx(0.5)


def test_the_adapter_that_tells_images_apart_is_chosen(bank: AdapterBank, images: Tensor) -> None:
    report = bank.choose([images])
    assert bank.names == ["identity", "sharp", "dull"]
    assert report.chosen == "sharp"
    assert report.scores[0].adapter == "sharp"
    assert next(score for score in report.scores if score.adapter == "dull").information == pytest.approx(0, abs=1e-6)
    assert report.num_images == 16


def test_learning_goes_on_from_a_copy(bank: AdapterBank, images: Tensor) -> None:
    bank.choose([images])
    before = bank.model.snapshot("sharp")
    assert bank.model.active_adapters == ["stream"]
    torch.testing.assert_close(bank.model.snapshot(), before, rtol=0, atol=0)
    tta = Spear(bank.model, tau=0.0)
    tta.step(images)
    assert tta.last is not None
    assert tta.last.adapted
    torch.testing.assert_close(bank.model.snapshot("sharp"), before, rtol=0, atol=0)
    assert float((bank.model.snapshot()["3.gamma"] - before["3.gamma"]).abs().max()) > 0


def test_a_margin_leaves_the_choice_to_the_identity(bank: AdapterBank, images: Tensor) -> None:
    report = bank.choose([images], margin=1.0)
    assert report.chosen == "identity"
    assert all(float(rsp.deviation().detach()) == 0 for several in bank.model.rsps().values() for rsp in several)
    assert bank.model.peft_config["stream"] == CONFIG


def test_ties_go_to_the_identity(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    source = saved(net, tmp_path / "same", 1.0)
    with pytest.warns(UserWarning, match="is the identity"):
        bank = AdapterBank.from_pretrained(net, source, config=CONFIG)
    assert bank.choose([images], margin=0.0).chosen == "identity"


def test_choosing_again_forgets_what_was_learned(bank: AdapterBank, images: Tensor) -> None:
    first = bank.choose([images])
    Spear(bank.model, tau=0.0).step(images)
    assert bank.choose([images]) == first
    torch.testing.assert_close(bank.model.snapshot(), bank.model.snapshot("sharp"), rtol=0, atol=0)


@pytest.mark.slow
def test_a_folder_and_a_repo_of_several_adapters_give_all_of_them(
    hub: LoopbackHub, net: nn.Module, tmp_path: Path, bank: AdapterBank
) -> None:
    for name in ("sharp", "dull"):
        bank.model.push_to_hub("me/rsps", name, subfolder=f"{name}-on-hub")
    net = bank.model.unload()
    everything = AdapterBank.from_pretrained(net, tmp_path, "me/rsps", config=CONFIG)
    assert everything.names == ["identity", "dull", "sharp", "dull-on-hub", "sharp-on-hub"]


def test_an_adapter_of_another_base_leaves_the_base_as_it_was(net: nn.Module, tmp_path: Path) -> None:
    source = saved(net, tmp_path / "sharp", 30.0, depth=0)
    with torch.no_grad():
        net.fc.weight.mul_(2)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BaseModelMismatchError):
        AdapterBank.from_pretrained(net, source)
    assert not any(module._forward_hooks for module in net.modules())


def test_no_images_and_unknown_names_are_refused(bank: AdapterBank) -> None:
    with pytest.raises(InputError, match="first batches"):
        bank.choose([])
    with pytest.raises(AdapterNotFoundError, match="'rain'"):
        bank.start_from("rain")
