import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spear_hf import GuardPolicy
from spear_hf.guard.health import HealthMonitor
from spear_hf.guard.shadow import Evidence


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-1, 1), st.floats(-1, 1)), max_size=60))
def test_without_an_alarm_the_regret_over_any_stretch_is_bounded(sums: list[tuple[int, float, float]]) -> None:
    policy = GuardPolicy()
    health, total, images = HealthMonitor(policy), 0.0, 0
    for n, regret, rise in sums:
        health.add(Evidence(n, n * regret, n * rise, torch.ones(2, 3)))
        total, images = total + n * regret, images + n
        if health.findings():
            break
        assert total <= policy.margin * images + policy.patience + 1e-6


def test_a_collapse_is_measured_against_the_sources_classes() -> None:
    health = HealthMonitor(GuardPolicy())
    one, all_ten = torch.eye(10)[0] * 40, torch.full((10,), 4.0)
    health.add(Evidence(40, 0.0, 0.0, torch.stack([one, one])))
    assert health.findings() == []
    health.clear()
    health.add(Evidence(40, 0.0, 0.0, torch.stack([one, all_ten])))
    assert health.findings() == [
        ("collapse", "predicted classes are 1.00 less varied than the source's, allowed is 0.3")
    ]
    assert health.collapse == pytest.approx(1.0)


def test_less_certain_predictions_are_found_beyond_the_allowed_rise() -> None:
    health = HealthMonitor(GuardPolicy(max_entropy_rise=0.15, patience=1.0))
    health.add(Evidence(10, 0.0, 10 * 0.15 + 0.4, torch.ones(2, 3)))
    assert health.findings() == []  # half the patience and 0.4
    health.add(Evidence(10, 0.0, 10 * 0.15 + 0.2, torch.ones(2, 3)))
    assert [(f.kind, f.text[-35:]) for f in health.findings()] == [("entropy", "by 1.10 in all beyond 0.15 an image")]
