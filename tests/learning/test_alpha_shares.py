from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import CheckpointError
from spear_hf.learning.alpha_shares import CHANCE_IMAGES, AlphaShares
from spear_hf.learning.statistics_memory import NormLayout
from tests.builders import check_resume, steered

LAYOUT = NormLayout(nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4)))


def learner(net: nn.Module, **changes: Any) -> Spear:
    config = SpearConfig.paper(tau=0.0, learning_rate=0.0, alpha_images=16)
    return Spear(steered(net, SpearConfig.from_dict(config.to_dict() | changes)))


def measured(distances: Sequence[float], spread: float, images: int = 16) -> list[float]:
    """The shares of two layers whose means are off by the root of a distance, with images spread around them."""
    shares = AlphaShares(64)
    first = torch.tensor([distance**0.5 for distance in distances for _ in range(4)])
    shares.add(torch.stack([first, first.square() + spread * (images - 1) / images]), images, LAYOUT)
    assert shares.shares is not None
    return shares.shares.tolist()


def test_a_shift_that_could_be_chance_is_not_mixed_in() -> None:
    assert measured([0.0, 0.1 / 16], spread=0.1) == pytest.approx([0, 0], abs=1e-6)
    assert measured([0.1 / 16 + 0.1 / CHANCE_IMAGES, 9.0], spread=0.1) == pytest.approx([0, 0.9986], abs=1e-4)


def test_a_share_is_what_the_equation_says() -> None:
    shift = 0.5 - 0.2 / 16
    assert measured([0.5, 0.5], spread=0.2)[0] == pytest.approx(1 - 0.2 / CHANCE_IMAGES / shift, abs=1e-6)


def test_batches_add_up_to_the_images_they_are_of() -> None:
    means = torch.rand(8, 8)
    whole, parts = AlphaShares(64), AlphaShares(64)
    whole.add(torch.stack([means.mean(0), means.square().mean(0)]), 8, LAYOUT)
    for part in means.split([3, 5]):
        parts.add(torch.stack([part.mean(0), part.square().mean(0)]), len(part), LAYOUT)
    torch.testing.assert_close(parts.shares, whole.shares)


def test_what_is_not_finite_or_absurd_is_not_measured() -> None:
    for bad in (float("nan"), float("inf"), 1e20):
        shares = AlphaShares(64)
        shares.add(torch.full((2, 8), bad), 4, LAYOUT)
        assert shares.shares is None
        assert shares.is_open


def moved(net: nn.Module, images: Tensor, by: float) -> nn.Module:
    """The net with the statistics of these images, and means that are off by so many standard deviations."""
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        for _ in range(8):
            net(images)
    for module in net.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean += by * module.running_var.sqrt()
    return net


def test_on_images_like_the_sources_the_source_answers(net: nn.Module, images: Tensor) -> None:
    tta = learner(moved(net, images, 0.0))
    with torch.no_grad():
        expected = net(images)
    torch.testing.assert_close(tta.step(images), expected, rtol=1e-3, atol=2e-3)
    assert tta.last is not None
    assert tta.last.alpha == 0


def test_on_images_unlike_the_sources_statistics_are_mixed(net: nn.Module, images: Tensor) -> None:
    tta = learner(moved(net, images, 3.0))
    answer = tta.step(images)
    assert tta.last is not None
    assert tta.last.alpha is not None
    assert 0.4 < tta.last.alpha <= 0.5
    plain = learner(tta.unload(), alpha_images=0)
    torch.testing.assert_close(plain.step(images), answer, rtol=0, atol=0.2)


def test_after_the_first_images_a_batch_costs_what_it_did(net: nn.Module, images: Tensor) -> None:
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    tta = learner(net)
    counts = []
    for x in images.repeat(2, 1, 1, 1).split(8):
        calls.clear()
        tta.step(x)
        counts.append(len(calls))
    assert counts == [2, 2, 1, 1]


def test_a_new_domain_is_measured_anew(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(10)]
    tta = learner(net, memory_images=64, domain_jump=4.0)
    measured = []
    for x in batches[:6] + [y * 0.3 - 2 for y in batches[6:]]:
        before = tta.state_dict()["trial"]["count"]
        tta.step(x)
        measured.append(tta.state_dict()["trial"]["count"] != before)
    assert measured == [True, True, False, False, False, False, True, True, False, False]
    tta.reset()
    assert tta.stream.alpha_shares.shares is None


def test_reset_and_resume_give_the_same_bits(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, memory_images=16, learning_rate=0.01, learn_stride=2)
    check_resume(tta, images.split(4), split=2)


def test_predict_answers_as_step_does_and_a_call_of_the_model_as_the_adapter(net: nn.Module, images: Tensor) -> None:
    tta = learner(moved(net, images, 0.0))
    mixed = tta.model(images).detach()
    answer = tta.step(images)
    torch.testing.assert_close(tta.predict(images), answer)
    assert torch.equal(tta.model(images), mixed)
    assert not torch.allclose(mixed, answer)


def test_without_alpha_there_is_nothing_to_measure(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, alpha=0.0)
    tta.step(images)
    assert tta.state_dict()["trial"]["count"] == 0


def test_shares_out_of_range_are_refused() -> None:
    shares = AlphaShares(64)
    with pytest.raises(CheckpointError, match=r"not in \[0, 1\]"):
        shares.load_state_dict({"count": 1, "shares": torch.tensor([2.0]), "means": None})
    assert shares.shares is None
