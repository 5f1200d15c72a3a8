"""CMF's Kalman filter by hand."""

import pytest
import torch
from torch import nn

from spear_hf.baselines.cmf import KalmanFilter
from spear_hf.baselines.parameter_set import ParameterSet


def test_cmf_filters_as_by_hand() -> None:
    learned = ParameterSet([nn.Parameter(torch.zeros(38_400))])
    kalman = KalmanFilter(noise=5e-3)
    variance, hidden, w = 0.0, 0.0, 0.0
    for _ in range(3):
        learned.put([learned.parameters[0].detach() + 1])
        w += 1
        hidden = 0.99 * hidden
        variance = 0.99**2 * variance + 0.005
        kept = 0.995 / (variance + 0.995)
        variance *= kept
        hidden = kept * hidden + (1 - kept) * w
        w = 0.99 * w + 0.01 * hidden
        kalman.maintain(learned)
        assert kalman.variance == pytest.approx(variance)
        assert kalman.hidden is not None
        torch.testing.assert_close(kalman.hidden[0][0], torch.tensor(hidden))
        torch.testing.assert_close(learned.parameters[0][0].detach(), torch.tensor(w))


@pytest.mark.parametrize(("q", "kept"), [(0.5, 0.89), (1e-5, 1.0), (0.05, 0.95)])
def test_the_gain_is_bounded(q: float, kept: float) -> None:
    kalman = KalmanFilter()
    assert kalman._gain(q) == pytest.approx(kept)
    assert kalman.variance == pytest.approx(q * kept)
