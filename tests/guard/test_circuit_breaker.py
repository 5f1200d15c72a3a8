import torch

from spear_hf import GuardPolicy
from spear_hf.guard.circuit_breaker import CircuitBreaker
from spear_hf.guard.shadow import Evidence


def test_a_method_that_fails_its_trials_waits_ever_longer_up_to_a_limit() -> None:
    breaker, waits = CircuitBreaker(GuardPolicy(wait=2, max_wait=8)), []
    for _ in range(4):
        breaker.trip()
        waits.append(breaker.steps_to_trial)
    assert waits == [2, 4, 8, 8]
    for _ in range(8):
        breaker.hold_one_step()
    breaker.trip()
    assert breaker.steps_to_trial == 2


def test_a_trial_is_judged_by_its_sums() -> None:
    breaker = CircuitBreaker(GuardPolicy(trial=2, margin=0.02, patience=1.0))
    breaker.begin_trial()
    over = [breaker.add_trial_step(Evidence(10, regret, 0.0, torch.ones(2, 3))) for regret in (0.0, 1.5)]
    assert over == [False, True]
    assert breaker.trial_failure() == "the regret was 0.075 an image, allowed is 0.02"
    breaker.begin_trial()
    breaker.add_trial_step(Evidence(20, 1.39, 0.0, torch.ones(2, 3)))  # 20 * margin + patience is 1.4
    assert breaker.trial_failure() == ""
