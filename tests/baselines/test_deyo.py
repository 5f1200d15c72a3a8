"""DeYO's PLPD, filter and weight, and its destroyed images, by hand."""

import math

import pytest
import torch
from torch import Tensor

from spear_hf.baselines.deyo import ObjectEntropy
from tests.builders import batch_of, logits_of_probabilities

SURE, SHAPE, UNSURE = [0.94, 0.02, 0.02, 0.02], [0.02, 0.9, 0.04, 0.04], [0.4, 0.2, 0.2, 0.2]


def h(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def test_plpd_is_what_the_answer_loses_with_the_object() -> None:
    batch = batch_of(logits_of_probabilities([SURE, SHAPE]))
    destroyed = logits_of_probabilities([[0.9, 0.05, 0.03, 0.02], [0.5, 0.1, 0.2, 0.2]])
    found = ObjectEntropy().plpd(batch.x, batch.logits, batch_of(batch.logits, forward=lambda _: destroyed))
    torch.testing.assert_close(found, torch.tensor([0.04, 0.8]))


def test_the_loss_is_of_sure_answers_that_need_the_object() -> None:
    seen: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return logits_of_probabilities([SURE, [0.5, 0.1, 0.2, 0.2]])

    loss = ObjectEntropy()(batch_of(logits_of_probabilities([SURE, UNSURE, SHAPE]), forward=forward))
    assert loss is not None
    weight = math.exp(0.4 * math.log(4) - h(SHAPE)) + math.exp(0.8)
    assert loss.item() == pytest.approx(h(SHAPE) * weight, rel=1e-5)
    assert [len(x) for x in seen] == [2]  # what is unsure is not forwarded again


def test_nothing_sure_or_nothing_of_shape_is_no_step() -> None:
    assert ObjectEntropy()(batch_of(logits_of_probabilities([UNSURE]))) is None
    assert ObjectEntropy()(batch_of(logits_of_probabilities([SURE]))) is None
