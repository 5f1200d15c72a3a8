"""CoTTA's teacher, views, loss and restore by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.augmentation import Augmentation
from spear_hf.baselines.cotta import ConsistencyLoss, StochasticRestore, TeacherAnswer
from spear_hf.baselines.parameter_set import ParameterSet
from tests.builders import NORMALIZATION, NORMALIZED, batch_of, logits_of_probabilities


def constant(learned: ParameterSet) -> Any:
    """A model that answers its one parameter for class 0, whatever the image."""
    return lambda x: torch.cat([learned.parameters[0].expand(len(x), 1), torch.zeros(len(x), 1)], 1)


@pytest.fixture
def learned() -> ParameterSet:
    return ParameterSet([nn.Parameter(torch.tensor([1.0]))])


def answerer(**changes: Any) -> TeacherAnswer:
    return TeacherAnswer(Augmentation(NORMALIZATION), **changes)


def test_a_sure_source_spares_the_views(learned: ParameterSet) -> None:
    seen: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return constant(learned)(x)

    sure = torch.tensor(1.0).sigmoid().item()
    learned.put([torch.tensor([-5.0])])  # the student's confidence is not asked for
    batch = batch_of(torch.zeros(2, 2), forward=forward, learned=learned)
    answer = answerer(confidence=sure - 0.01).answer(batch)
    assert torch.equal(answer, torch.tensor([[1.0, 0.0]]).expand(2, 2))
    assert [torch.equal(x, batch.x) for x in seen] == [True, True]
    seen.clear()
    answer = answerer(confidence=sure + 0.01, views=3).answer(batch)
    assert [torch.equal(x, batch.x) for x in seen] == [True, False, False, False]
    torch.testing.assert_close(answer, torch.tensor([[1.0, 0.0]]).expand(2, 2))


def test_the_student_imitates_the_answer_in_one_direction_or_both() -> None:
    t, s = logits_of_probabilities([[0.7, 0.3]]), logits_of_probabilities([[0.4, 0.6]])
    batch = batch_of(s)
    batch = type(batch)(batch.x, s, batch.forward, batch.learned, 1, t)
    p, q = t.softmax(1), s.softmax(1)
    forward, backward = -(p * q.log()).sum(), -(q * p.log()).sum()
    torch.testing.assert_close(ConsistencyLoss()(batch), forward)
    torch.testing.assert_close(ConsistencyLoss(symmetric=True)(batch), (forward + backward) / 2)


def test_a_share_of_the_student_goes_back_to_the_source() -> None:
    learned = ParameterSet([nn.Parameter(torch.zeros(100_000))])
    learned.put([torch.ones(100_000)])
    StochasticRestore(0.01).maintain(learned)
    values = learned.parameters[0].detach()
    assert set(values.tolist()) == {0.0, 1.0}
    assert (values == 0).float().mean().item() == pytest.approx(0.01, rel=0.2)


def test_a_step_moves_student_then_teacher_and_answers_with_the_teacher(net: nn.Module, images: Tensor) -> None:
    cotta: Any = METHODS["cotta"](
        net, confidence=0.0, restore=0.0, momentum_teacher=0.5, learning_rate=0.01, **NORMALIZED
    )
    assert cotta.learned.count == sum(p.numel() for p in net.parameters())
    cotta.step(images)
    middle = [(p.detach() + s) / 2 for p, s in zip(cotta.parameters(), cotta.learned.start, strict=True)]
    with cotta.learned.holding(middle), torch.no_grad():
        expected = cotta.adapted.forward(images)
    torch.testing.assert_close(cotta.step(images), expected, rtol=1e-4, atol=1e-5)
