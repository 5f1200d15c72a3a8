from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.learning.alpha_selection import AlphaSelector
from spear_hf.learning.statistics_memory import Way
from tests.builders import check_resume, steered


def learner(net: nn.Module, **changes: Any) -> Spear:
    config = SpearConfig.paper(tau=0.0, learning_rate=0.0, alpha_trial=16)
    return Spear(steered(net, SpearConfig.from_dict(config.to_dict() | changes)))


def with_variance(net: nn.Module, factor: float) -> nn.Module:
    """The net, its source's variances off by a factor: a large one makes mixed answers unsure, a small one sure."""
    with torch.no_grad():
        net.get_submodule("fc").weight.mul_(30)  # pyright: ignore[reportCallIssue, reportArgumentType]
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None
            module.running_var.mul_(factor)
    return net


EVEN, ONE_CLASS = torch.tensor([0.25, 0.25, 0.25, 0.25]), torch.tensor([0.97, 0.01, 0.01, 0.01])


def means(source: float, mixed: float, batch: float, of_source: Tensor = EVEN) -> dict[Way, tuple[float, Tensor]]:
    return {"source": (source, of_source), "mixed": (mixed, EVEN), "batch": (batch, EVEN)}


def test_the_streams_statistics_are_taken_where_they_are_surer_by_a_sixth() -> None:
    trial = AlphaSelector(16)
    assert trial.is_open
    assert trial.add(means(0.7, 0.6, 0.55), 8) == "mixed"
    assert trial.add(means(0.7, 0.6, 0.40), 8) == "batch"  # 0.95 of 1.2
    assert not trial.is_open


def test_the_streams_statistics_are_left_where_mixed_ones_are_surer() -> None:
    trial = AlphaSelector(16)
    trial.clear("batch")
    assert trial.add(means(0.7, 0.6, 0.59), 8) == "batch"
    assert trial.add(means(0.7, 0.6, 0.62), 8) == "mixed"  # 1.21 of 1.2
    trial.clear()
    assert trial.add(means(0.7, 0.6, 0.59), 8) == "mixed"


def test_the_sources_statistics_are_taken_where_answers_tell_classes_apart() -> None:
    trial = AlphaSelector(16)
    assert trial.add(means(0.5, 0.6, 0.6), 8) == "source"
    trial.clear()
    assert trial.add(means(0.1, 0.6, 0.6, ONE_CLASS), 8) == "mixed", "sure, of one class for all images"
    trial.clear()
    assert trial.add(means(0.599, 0.6, 0.6), 8) == "mixed", "hardly better"
    trial.clear("source")
    assert trial.add(means(0.599, 0.6, 0.6), 8) == "source"
    assert trial.add(means(0.61, 0.6, 0.6), 8) == "mixed"


def test_no_images_are_no_trial() -> None:
    assert not AlphaSelector(0).is_open


@pytest.mark.parametrize("memory", [0, 64])
def test_statistics_that_fit_badly_give_way_at_the_first_batch(net: nn.Module, images: Tensor, memory: int) -> None:
    tta = learner(with_variance(net, 1000.0), memory_images=memory)
    answers = [tta.step(x) for x in images.split(4)]
    assert tta.last is not None
    assert tta.last.statistics == "batch"
    whole = learner(tta.unload(), alpha=1.0, alpha_trial=0, memory_images=memory)
    for x, answer in zip(images.split(4), answers, strict=True):
        torch.testing.assert_close(whole.step(x), answer)


def test_statistics_that_fit_stay_mixed(net: nn.Module, images: Tensor) -> None:
    tta = learner(with_variance(net, 0.1))
    answers = [tta.step(x) for x in images.split(4)]
    assert tta.last is not None
    assert tta.last.statistics == "mixed"
    plain = learner(tta.unload(), alpha_trial=0)
    assert all(torch.equal(plain.step(x), answer) for x, answer in zip(images.split(4), answers, strict=True))


def test_after_the_trial_a_batch_costs_what_it_did(net: nn.Module, images: Tensor) -> None:
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    tta = learner(with_variance(net, 0.1))
    counts = []
    for x in images.repeat(2, 1, 1, 1).split(8):
        calls.clear()
        tta.step(x)
        counts.append(len(calls))
    assert counts == [3, 3, 1, 1]


def test_a_new_domain_is_tried_anew(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(10)]
    tta = learner(with_variance(net, 0.1), memory_images=64, domain_jump=4.0)
    trials = []
    for x in batches[:6] + [y * 0.3 - 2 for y in batches[6:]]:
        before = tta.state_dict()["trial"]["count"]
        tta.step(x)
        trials.append(tta.state_dict()["trial"]["count"] != before)
    assert trials == [True, True, False, False, False, False, True, True, False, False]


@pytest.mark.parametrize("factor", [1000.0, 0.1])
def test_a_new_domain_begins_the_way_of_the_last(net: nn.Module, factor: float) -> None:
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(10)]
    tta = learner(with_variance(net, factor), memory_images=64, domain_jump=4.0)
    ways, began = [], []
    for x in batches[:6] + [y * 0.3 - 2 for y in batches[6:]]:
        tta.step(x)
        assert tta.last is not None
        ways.append(tta.last.statistics)
        if tta.last.new_domain:
            began.append(tta.state_dict()["trial"]["began"])
    assert began == [ways[5]]
    assert ways[5] == ("batch" if factor > 1 else "mixed")
    tta.reset()
    assert tta.stream.statistics.way == "mixed"


def test_reset_and_resume_give_the_same_bits(net: nn.Module, images: Tensor) -> None:
    tta = learner(with_variance(net, 1000.0), memory_images=16, learning_rate=0.01, learn_stride=2)
    check_resume(tta, images.split(4), split=2)


def test_predict_answers_as_the_trial_decided_and_a_call_of_the_model_as_the_adapter(
    net: nn.Module, images: Tensor
) -> None:
    tta = learner(with_variance(net, 1000.0))
    mixed = tta.model(images).detach()
    answer = tta.step(images)
    torch.testing.assert_close(tta.predict(images), answer)
    assert torch.equal(tta.model(images), mixed)
    assert not torch.allclose(mixed, answer)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_without_a_mixture_there_is_nothing_to_try(net: nn.Module, images: Tensor, alpha: float) -> None:
    tta = learner(with_variance(net, 1000.0), alpha=alpha)
    tta.step(images)
    assert tta.state_dict()["trial"]["count"] == 0
