"""Learned parameters, and their averaged teacher."""

import pytest
import torch
from torch import nn

from spear_hf.baselines.parameter_set import MeanTeacher, ParameterSet


def test_pull_moves_part_of_the_way() -> None:
    learned = ParameterSet([nn.Parameter(torch.tensor([1.0, 2.0]))])
    learned.pull([torch.tensor([3.0, 2.0])], 0.25)
    torch.testing.assert_close(learned.parameters[0].detach(), torch.tensor([1.5, 2.0]))


@pytest.fixture
def learned() -> ParameterSet:
    return ParameterSet([nn.Parameter(torch.tensor([1.0]))])


def test_the_teacher_is_the_source_and_then_follows_slowly(learned: ParameterSet) -> None:
    teacher = MeanTeacher(0.9)
    learned.put([torch.tensor([3.0])])
    with teacher.speaking(learned):
        assert learned.parameters[0].item() == 1.0
    teacher.maintain(learned)
    teacher.maintain(learned)
    with teacher.speaking(learned):
        assert learned.parameters[0].item() == pytest.approx(0.9 * 1.2 + 0.1 * 3)
    assert learned.parameters[0].item() == 3.0
