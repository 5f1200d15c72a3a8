import math

import pytest
import torch

from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.metrics import NUM_BINS, sums_over


def test_an_error_is_a_percentage() -> None:
    metrics = MetricAccumulator(["method"])
    assert math.isnan(metrics.error("fog", "method"))
    metrics.add("fog", "method", [1] + [0] * (3 + NUM_BINS), 4)
    assert metrics.error("fog", "method") == 25.0


def test_a_run_without_a_batch_has_no_report() -> None:
    with pytest.raises(DataError, match="the stream gave no batch; check its limit"):
        MetricAccumulator(["method"]).report({}, {})


def test_a_state_brings_all_sums_back() -> None:
    first, second = MetricAccumulator(["method"]), MetricAccumulator(["method"])
    first.add("fog", "method", sums_over(torch.tensor([[0.9, 0.1]]).log(), torch.tensor([0])).tolist(), 1)
    first.add_cost("method", 0.5, 800, "bytes")
    second.load_state_dict(first.state_dict())
    assert second.report({}, {}) == first.report({}, {})


def test_a_state_of_an_earlier_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match="saved by an earlier version"):
        MetricAccumulator(["source"]).load_state_dict({"counts": {}, "seconds": {}, "adaptation": {}})
