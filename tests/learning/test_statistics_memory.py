import copy
import math

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.statistics_memory import NormLayout, StatisticsMemory, StreamStatistics
from tests.builders import check_resume, steered


def learner(net: nn.Module, images: int = 16, **changes: object) -> Spear:
    return Spear(steered(net, SpearConfig.paper(memory_images=images, tau=0.0, **changes)))


def layer() -> tuple[nn.Module, NormLayout]:
    """A batch norm of three channels, which "0" is the name of."""
    base = nn.Sequential(nn.BatchNorm1d(3)).eval()
    return base[0], NormLayout(base)


def seen(memory: StatisticsMemory, x: Tensor) -> tuple[Tensor, Tensor]:
    """The statistics that a batch is normalised by, which are remembered."""
    norm, layout = layer()
    statistics = StreamStatistics([memory], layout, None, [len(x)])
    moments = statistics.moments("0", x, norm, 1.0, None)
    assert moments is not None
    memory.kept = statistics.collected()[0]
    return moments


def test_joined_moments_are_those_of_the_weighted_union() -> None:
    a, b, memory = torch.randn(30, 3).double() + 5, torch.randn(10, 3).double() * 2, StatisticsMemory(20)
    seen(memory, a)
    mean, variance = seen(memory, b)
    weights = torch.cat(
        [torch.full((30,), math.exp(-0.5) * (1 - math.exp(-1.5)) / 30), torch.full((10,), (1 - math.exp(-0.5)) / 10)]
    )
    both, weights = torch.cat([a, b]), (weights / weights.sum())[:, None].double()
    torch.testing.assert_close(mean, (weights * both).sum(0))
    torch.testing.assert_close(variance, (weights * (both - mean).square()).sum(0))


def test_earlier_batches_fade_with_the_images_that_came_since() -> None:
    memory = StatisticsMemory(8)
    seen(memory, torch.zeros(4, 3))
    mean, _ = seen(memory, torch.ones(4, 3))
    torch.testing.assert_close(mean, torch.full((3,), 1 / (1 + math.exp(-0.5))))


def test_what_is_remembered_of_several_streams_is_that_of_each_alone() -> None:
    norm, layout = layer()
    x, index = torch.randn(9, 3).double(), torch.tensor([0, 1, 1, 0, 1, 1, 1, 0, 0])
    memories, alone = [StatisticsMemory(8), StatisticsMemory(8)], [StatisticsMemory(8), StatisticsMemory(8)]
    for shift in (0.0, 3.0):
        statistics = StreamStatistics(memories, layout, index, [4, 5])
        mean, variance = statistics.moments("0", x + shift, norm, 1.0, None)  # pyright: ignore[reportGeneralTypeIssues]
        for memory, taken in zip(memories, statistics.collected(), strict=True):
            memory.kept = taken
        for i, memory in enumerate(alone):
            rows = index == i
            expected = seen(memory, x[rows] + shift)
            torch.testing.assert_close((mean[rows][0], variance[rows][0]), expected)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_layer_with_statistics_that_are_not_finite_forgets_rather_than_remembers_them(bad: float) -> None:
    memory = StatisticsMemory(8)
    seen(memory, torch.randn(4, 3))
    seen(memory, torch.full((4, 3), bad))
    kept = memory.kept
    assert kept is not None
    assert bool(torch.isfinite(kept.mean).all())
    assert bool(torch.isfinite(kept.variance).all())
    x = torch.randn(4, 3)
    torch.testing.assert_close(seen(memory, x), seen(StatisticsMemory(8), x))


def test_without_a_memory_each_batch_stands_alone(net: nn.Module, images: Tensor) -> None:
    plain, tta = learner(net, 0), None
    answers = [plain.step(images), plain.step(images.flip(0) + 1)]
    tta = learner(plain.unload(), 1)  # a memory of one image is gone after a batch of eight
    assert torch.equal(tta.step(images), answers[0])
    torch.testing.assert_close(tta.step(images.flip(0) + 1), answers[1], rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_small_batches_are_answered_much_as_the_large_one_they_are_part_of(net: nn.Module, images: Tensor) -> None:
    whole = steered(net, SpearConfig.paper())
    expected = whole(images).detach()
    errors = {}
    for memory in (0, 64):
        tta = learner(whole.unload(), memory, learning_rate=0.0)
        for _ in range(3):
            answer = torch.cat([tta.step(part) for part in images.split(2)])
        errors[memory] = float((answer - expected).norm())
        whole = tta.model
    assert errors[64] < 0.7 * errors[0]


def test_predicting_never_remembers(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    tta.step(images)
    first = tta.predict(images + 1)
    assert torch.equal(tta.predict(images + 1), first)
    assert torch.equal(tta.step(images + 1), first)


def test_a_call_of_the_model_depends_on_the_adapter_alone(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, learning_rate=0.0)
    before = tta.model(images).detach()
    tta.step(images + 1)
    assert torch.equal(tta.model(images), before)
    assert not torch.allclose(tta.predict(images), before)


def test_a_stream_after_reset_and_a_resumed_one_give_the_same_bits(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    check_resume(tta, [images[:4], images[4:], images[2:6]], split=2)


def test_several_steps_of_a_batch_remember_it_once(net: nn.Module, images: Tensor) -> None:
    once, thrice = learner(net, steps=1), None
    once.step(images)
    kept = once.state_dict()["statistics"]
    thrice = learner(once.unload(), steps=3)
    thrice.step(images)
    torch.testing.assert_close(thrice.state_dict()["statistics"], kept, rtol=0, atol=0)


def test_adapters_of_different_memory_do_not_act_together(net: nn.Module) -> None:
    model = steered(net, SpearConfig(memory_images=16))
    model.add_adapter("other", SpearConfig(memory_images=8))
    with pytest.raises(ConfigError, match=r"different memory_images \[8, 16\]"):
        model.set_adapter(["default", "other"])


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_images=-1 is not allowed"):
        SpearConfig(memory_images=-1)


@pytest.mark.parametrize("pixel", [1e8, 1e20, 3e38])
def test_a_finite_but_absurd_pixel_is_not_remembered(net: nn.Module, pixel: float) -> None:
    """In statistics, in Adam's moments and in the classes: the batches after it are answered as if it had not come."""
    tta, other = (learner(base, 64, hard_gate=False) for base in (copy.deepcopy(net), net))
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        x = torch.randn(8, 3, 32, 32, generator=generator)
        spoilt = x.clone()
        spoilt[0, 0, 3, 3] = pixel if number == 2 else x[0, 0, 3, 3]
        answer, expected = tta.step(spoilt), other.step(x)
        if number > 2:
            torch.testing.assert_close(answer, expected, rtol=0.3, atol=0.3)
    assert all(bool((m["exp_avg_sq"] < 1e3).all()) for m in tta.optimizer.state.values())
