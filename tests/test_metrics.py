import math

import pytest
import torch

from spear_hf.errors import DataError
from spear_hf.metrics import ErrorCount, count_wrong, mean


def test_wrong_answers_are_counted() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    assert count_wrong(logits, torch.tensor([0, 1])) == 1


def test_only_classes_that_can_occur_can_be_the_answer() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0], [9.0, 1.0, 2.0]])
    assert count_wrong(logits, torch.tensor([1, 2])) == 2
    assert count_wrong(logits, torch.tensor([1, 2]), classes=torch.tensor([1, 2])) == 0


def test_labels_of_another_model_are_refused() -> None:
    with pytest.raises(DataError, match=r"labels 0\.\.7 do not fit a model with 3 classes"):
        count_wrong(torch.zeros(2, 3), torch.tensor([0, 7]))


def test_an_error_is_a_percentage_and_the_mean_is_unweighted() -> None:
    count = ErrorCount()
    assert math.isnan(count.error)
    count.add(1, 4)
    assert count.error == 25.0
    assert mean([10.0, 20.0]) == 15.0
