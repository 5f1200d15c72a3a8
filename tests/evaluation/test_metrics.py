import math

import pytest
import torch

from spear_hf.errors import DataError
from spear_hf.evaluation.metrics import NUM_BINS, WORST_NLL, Counts, count_wrong, mean, sums_over


def counted(logits: torch.Tensor, labels: list[int], classes: torch.Tensor | None = None) -> Counts:
    counts = Counts()
    counts.add(sums_over(logits, torch.tensor(labels), classes).tolist(), len(labels))
    return counts


def log(*probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


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
    count = Counts()
    assert all(math.isnan(value) for value in (count.error, count.mean_nll, count.ece))
    count.add([1] + [0] * (1 + NUM_BINS), 4)
    assert count.error == 25.0
    assert mean([10.0, 20.0]) == 15.0


def test_likelihood_is_that_of_the_labels() -> None:
    counts = counted(log([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]), [1, 1])
    assert counts.mean_nll == pytest.approx((math.log(4) - math.log(0.8)) / 2, abs=1e-4)


def test_calibration_is_the_gap_of_confidence_and_accuracy_within_a_bin() -> None:
    # two answers of confidence 0.9 in one bin, one right: |1 - 1.8| / 3; one of 0.6 in another, right: |1 - 0.6| / 3
    counts = counted(log([0.9, 0.1], [0.9, 0.1], [0.6, 0.4]), [0, 1, 0])
    assert counts.ece == pytest.approx(100 * (0.8 + 0.4) / 3, abs=1e-3)


def test_sure_and_right_answers_are_calibrated_and_sure_and_wrong_ones_are_not() -> None:
    sure = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert (counted(sure, [0, 1]).ece, counted(sure, [1, 0]).ece) == (0.0, 100.0)
    assert counted(sure, [1, 0]).mean_nll == 100.0


def test_probabilities_are_over_the_classes_that_can_occur() -> None:
    logits = log([0.8, 0.1, 0.1], [0.8, 0.1, 0.1])
    counts = counted(logits, [1, 2], classes=torch.tensor([1, 2]))
    assert counts.mean_nll == pytest.approx(math.log(2), abs=1e-4)
    assert (counts.error, counts.ece) == (50.0, 0.0)


def test_any_split_into_batches_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(97, 10, generator=generator) * 5, torch.randint(10, (97,), generator=generator)
    whole, parts = Counts(), Counts()
    whole.add(sums_over(logits, labels).tolist(), 97)
    for x, y in zip(logits.split(6), labels.split(6), strict=True):
        parts.add(sums_over(x, y).tolist(), len(y))
    assert whole == parts


def test_answers_that_are_not_finite_are_the_worst_there_is() -> None:
    counts = counted(torch.tensor([[float("nan"), 0.0], [float("inf"), 0.0]]), [1, 1])
    assert counts.mean_nll == WORST_NLL
    assert math.isfinite(counts.ece)
    assert counted(torch.zeros(0, 3), []).total == 0
