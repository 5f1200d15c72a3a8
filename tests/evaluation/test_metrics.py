import math

import pytest
import torch
from torch import Tensor

from spear_hf.errors import DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.metrics import WORST_NLL, count_wrong, mean, sums_over
from spear_hf.evaluation.report import DomainResult


def counted(logits: Tensor, labels: list[int], classes: Tensor | None = None, split: int = 100) -> DomainResult:
    """The result of one method, which got its images in batches of `split`."""
    metrics = MetricAccumulator(["method"])
    for x, y in zip(logits.split(split), torch.tensor(labels).split(split), strict=True):
        metrics.add("fog", "method", sums_over(x, y, classes).tolist(), len(y))
    return metrics.report({}, {}).rows[0]


def log(*probabilities: list[float]) -> Tensor:
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


def test_a_mean_is_unweighted_and_that_of_nothing_is_nan() -> None:
    assert mean([10.0, 20.0]) == 15.0
    assert math.isnan(mean([]))


def test_likelihood_is_that_of_the_labels() -> None:
    found = counted(log([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]), [1, 1]).nll["method"]
    assert found == pytest.approx((math.log(4) - math.log(0.8)) / 2, abs=1e-4)


def test_calibration_is_the_gap_of_confidence_and_accuracy_within_a_bin() -> None:
    # two answers of confidence 0.9 in one bin, one right: |1 - 1.8| / 3; one of 0.6 in another, right: |1 - 0.6| / 3
    found = counted(log([0.9, 0.1], [0.9, 0.1], [0.6, 0.4]), [0, 1, 0]).ece["method"]
    assert found == pytest.approx(100 * (0.8 + 0.4) / 3, abs=1e-3)


def test_sure_and_right_answers_are_calibrated_and_sure_and_wrong_ones_are_not() -> None:
    sure = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert counted(sure, [0, 1]).ece == {"method": 0.0}
    assert counted(sure, [1, 0]).ece == {"method": 100.0}
    assert counted(sure, [1, 0]).nll == {"method": 100.0}


def test_probabilities_are_over_the_classes_that_can_occur() -> None:
    found = counted(log([0.8, 0.1, 0.1], [0.8, 0.1, 0.1]), [1, 2], classes=torch.tensor([1, 2]))
    assert found.nll["method"] == pytest.approx(math.log(2), abs=1e-4)
    assert (found.error["method"], found.ece["method"]) == (50.0, 0.0)


def test_any_split_into_batches_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(97, 10, generator=generator) * 5, torch.randint(10, (97,), generator=generator)
    assert counted(logits, labels.tolist()) == counted(logits, labels.tolist(), split=6)
    whole, parts = (
        sums_over(logits, labels),
        [sums_over(*p) for p in zip(logits.split(6), labels.split(6), strict=True)],
    )
    assert torch.equal(whole, torch.stack(parts).sum(0))


def test_answers_that_are_not_finite_are_the_worst_there_is() -> None:
    found = counted(torch.tensor([[float("nan"), 0.0], [float("inf"), 0.0]]), [1, 1])
    assert found.nll["method"] == WORST_NLL
    assert math.isfinite(found.ece["method"])
    assert not sums_over(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).any()
