"""RoTTA's memory, robust statistics and timed steps, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.rotta import WAITING, CategoryMemory
from spear_hf.errors import ConfigError
from tests.builders import NORMALIZED


def filled(labels: list[int], uncertainties: list[float], capacity: int, classes: int = 2) -> CategoryMemory:
    memory = CategoryMemory(capacity)
    for i, (label, uncertainty) in enumerate(zip(labels, uncertainties, strict=True)):
        memory.add(torch.full((1,), float(i)), label, uncertainty, classes)
    return memory


def kept(memory: CategoryMemory) -> list[float]:
    return [image.item() for image in memory.images]


# --- memory ----------------------------------------------------------------------------------------------------------


def test_everything_is_taken_below_the_quota_and_ages() -> None:
    memory = filled([0, 1, 0], [0.1, 0.2, 0.3], 4)
    assert (kept(memory), memory.labels, memory.ages, memory.seen) == ([0, 1, 2], [0, 1, 0], [3, 2, 1], 3)


def test_at_the_quota_the_worst_of_the_class_gives_way() -> None:
    memory = filled([0, 0, 0], [0.6, 0.1, 0.2], 4)
    assert (kept(memory), memory.ages) == ([1, 2], [2, 1])


def test_what_is_more_uncertain_than_the_worst_is_refused_but_all_age() -> None:
    memory = filled([0, 0, 0], [0.1, 0.1, 0.6], 4)
    assert (kept(memory), memory.ages) == ([0, 1], [3, 2])


def test_a_full_memory_takes_from_its_largest_class() -> None:
    memory = filled([0, 0, 0, 0], [0.1, 0.3, 0.2, 0.1], 4, classes=1 + 1)
    assert memory.labels == [0, 0]
    memory = CategoryMemory(4)
    for label, uncertainty in [(0, 0.1), (0, 0.9), (1, 0.9), (2, 0.9)]:
        memory.add(torch.tensor([float(label)]), label, uncertainty, 3)
    assert len(memory.images) == 4
    assert memory.add(torch.tensor([9.0]), 1, 0.1, 3)  # class 1 is below 4/3; 0 is the largest, its second the worst
    assert sorted(memory.labels) == [0, 1, 1, 2]
    assert memory.uncertainties[0] == 0.1


def test_the_score_is_of_age_and_uncertainty() -> None:
    found = CategoryMemory(64)._score(64, 0.5, 10)
    assert found == pytest.approx(1 / (1 + math.exp(-1)) + 0.5 / math.log(10))


def test_old_images_count_less() -> None:
    memory = filled([0, 1], [0.1, 0.1], 4)
    w = [math.exp(-a / 4) / (1 + math.exp(-a / 4)) for a in (2, 1)]
    torch.testing.assert_close(memory.timeliness(torch.device("cpu")), torch.tensor(w))


# --- the method ------------------------------------------------------------------------------------------------------


def test_it_learns_once_every_so_many_images(net: nn.Module, images: Tensor) -> None:
    rotta: Any = METHODS["rotta"](net, every=24, **NORMALIZED)
    outcomes = []
    for _ in range(3):
        rotta.step(images)
        outcomes.append(rotta.last.skipped)
    assert outcomes == [WAITING, None, None]
    assert rotta.objective.memory.seen == 48


def test_the_teacher_answers_with_its_own_statistics(net: nn.Module, images: Tensor) -> None:
    rotta: Any = METHODS["rotta"](net, every=16, momentum_teacher=1.0, learning_rate=1.0, **NORMALIZED)
    rotta.step(images)
    answer = rotta.step(images)
    rotta.learned.put(rotta.learned.start)  # a teacher that never follows is the source, under statistics that moved
    rotta.objective.statistics.student = None
    expected = net(images)
    assert not torch.equal(answer, expected)
    assert rotta.objective.statistics.teacher is not None
    torch.testing.assert_close(dict(rotta.unload().named_buffers()), dict(net.named_buffers()))


def test_rotta_on_rsps_takes_their_statistics(net: nn.Module, images: Tensor) -> None:
    rotta: Any = METHODS["rotta"](net, every=8, where="rsp", **NORMALIZED)
    rotta.step(images)
    assert rotta.last.adapted
    assert rotta.objective.statistics.teacher is None


def test_no_room_is_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match="capacity=0, every=64 are not allowed; give at least 1"):
        METHODS["rotta"](net, capacity=0, **NORMALIZED)
