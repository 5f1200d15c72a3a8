import pytest
import torch
from torch import Tensor, nn

from spear_hf import Guard, predict
from spear_hf.errors import DataError
from tests.builders import learner

NAMES = [f"class {k}" for k in range(10)]


def test_answers_come_in_order_with_their_names_and_the_sources(net: nn.Module, images: Tensor) -> None:
    stream = [{"pixel_values": images[:9], "names": [f"{i}.jpg" for i in range(9)]}, {"pixel_values": images[9:]}]
    with torch.no_grad():
        expected = net(images).softmax(1)
    answers = list(predict(learner(net), stream, source=net, class_names=NAMES))  # the base that the learner steers
    assert [a.file for a in answers] == [f"{i}.jpg" for i in range(9)] + [str(i) for i in range(9, 16)]
    assert [a.source_index for a in answers] == expected.argmax(1).tolist()
    assert [a.source_probability for a in answers] == pytest.approx(expected.max(1).values.tolist(), abs=1e-5)
    assert answers[0].class_name == NAMES[answers[0].class_index]


def test_the_top_is_sorted_and_begins_with_the_answer(net: nn.Module, images: Tensor) -> None:
    answer = next(predict(net, [images]))
    assert len(answer.top) == 5
    assert answer.top[0] == (answer.class_index, answer.probability)
    assert list(answer.top) == sorted(answer.top, key=lambda row: -row[1])
    assert answer.source_index is None


def test_a_guarded_learner_learns_behind_its_answers(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    answers = list(predict(Guard(tta), [images, images]))
    assert (tta.num_steps, {a.learned for a in answers}) == (2, {True})
    assert [a.batch for a in answers] == [0] * 16 + [1] * 16


def test_nothing_is_learned_before_an_answer_is_asked_for(net: nn.Module, images: Tensor) -> None:
    tta = learner(net)
    answers = predict(tta, [images, images])
    assert tta.num_steps == 0
    next(answers)
    assert tta.num_steps == 1


def test_class_names_that_do_not_fit_are_refused(net: nn.Module, images: Tensor) -> None:
    with pytest.raises(DataError, match="3 class names do not fit a model with 10 classes"):
        next(predict(net, [images], class_names=["a", "b", "c"]))
