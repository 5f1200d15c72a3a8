import math

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.errors import ConfigError
from spear_hf.learning.stream_state import Remembered, StreamStatistics
from tests.builders import check_resume


def learner(net: nn.Module, images: int = 16, **changes: object) -> Spear:
    return Spear(get_spear_model(net, SpearConfig(statistics_memory=images, alpha=0.5, tau=0.0, **changes)))  # type: ignore[arg-type]


def test_joined_moments_are_those_of_the_union() -> None:
    a, b = torch.randn(30, 3) + 5, torch.randn(10, 3) * 2
    parts = [Remembered(x.mean(0), x.var(0, correction=0), len(x) / 40) for x in (a, b)]
    both = torch.cat([a, b])
    mean, variance, weight = parts[0].joined(parts[1])
    torch.testing.assert_close(mean, both.mean(0))
    torch.testing.assert_close(variance, both.var(0, correction=0))
    assert weight == 1.0


def test_earlier_batches_fade_with_the_images_that_came_since() -> None:
    stream = StreamStatistics()
    stream.images = 8
    for value in (0.0, 1.0):
        with stream.collecting():
            mean, _ = stream.blended("bn", torch.tensor([value]), torch.zeros(1), 4)
        stream.commit()
    fading = math.exp(-0.5)
    assert float(mean) == pytest.approx(1 / (1 + fading))


def test_without_a_memory_each_batch_stands_alone(net: nn.Module, images: Tensor) -> None:
    plain, tta = learner(net, 0), None
    answers = [plain.step(images), plain.step(images.flip(0) + 1)]
    tta = learner(plain.unload(), 1)  # a memory of one image is gone after a batch of eight
    assert torch.equal(tta.step(images), answers[0])
    torch.testing.assert_close(tta.step(images.flip(0) + 1), answers[1], rtol=1e-2, atol=1e-2)


def test_small_batches_are_answered_much_as_the_large_one_they_are_part_of(net: nn.Module, images: Tensor) -> None:
    whole = get_spear_model(net, SpearConfig(alpha=0.5))
    expected = whole(images).detach()
    errors = {}
    for memory in (0, 64):
        tta = learner(whole.unload(), memory, learning_rate=0.0)
        for _ in range(3):
            answer = torch.cat([tta.step(part) for part in images.split(2)])
        errors[memory] = float((answer - expected).norm())
        whole = tta.model
    assert errors[64] < 0.7 * errors[0]


def test_calling_never_remembers(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    tta.step(images)
    first = tta.model(images + 1).detach()
    assert torch.equal(tta.model(images + 1), first)


@pytest.mark.parametrize("memories", [(16, 0), (0, 16), (16, 16)])
def test_a_stream_after_reset_and_a_resumed_one_give_the_same_bits(
    net: nn.Module, images: Tensor, memories: tuple[int, int]
) -> None:
    statistics, diversity = memories
    tta = learner(net, statistics, diversity_memory=diversity)
    check_resume(tta, [images[:4], images[4:], images[2:6]], split=2)


def test_several_steps_of_a_batch_remember_it_once(net: nn.Module, images: Tensor) -> None:
    once, thrice = learner(net, steps=1), None
    once.step(images)
    kept = once.state_dict()["statistics"]
    thrice = learner(once.unload(), steps=3)
    thrice.step(images)
    torch.testing.assert_close(thrice.state_dict()["statistics"], kept, rtol=0, atol=0)


def test_adapters_of_different_memory_do_not_act_together(net: nn.Module) -> None:
    model = get_spear_model(net, SpearConfig(statistics_memory=16))
    model.add_adapter("other", SpearConfig(statistics_memory=8))
    with pytest.raises(ConfigError, match=r"different statistics_memory \[8, 16\]"):
        model.set_adapter(["default", "other"])


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="statistics_memory=-1 is not allowed"):
        SpearConfig(statistics_memory=-1)
