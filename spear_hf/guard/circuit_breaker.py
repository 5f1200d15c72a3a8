"""CircuitBreaker: when the source answers, and when the method is tried again.

Closed: the method answers. Open: the source answers for some steps. Half open: a trial, in which the method steps but
its predictions are not returned. A trial that goes well closes the breaker; a failed one opens it for twice as long. So
a stream that the method never suits is answered by the source, at little more than the source's cost.
"""

from typing import Any

from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.shadow import Evidence


class CircuitBreaker:
    """Counts the steps in which the source answers, and sums up how the method does on trial.

    Args:
        policy: `wait`, `max_wait`, `trial` and what a trial tolerates.

    >>> from spear_hf.guard import GuardPolicy
    >>> from spear_hf.guard.circuit_breaker import CircuitBreaker
    >>> breaker = CircuitBreaker(GuardPolicy(wait=2))
    >>> breaker.trip()
    >>> breaker.source_answers, breaker.wait_one_step(), breaker.wait_one_step(), breaker.is_waiting
    (True, False, True, False)
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Close the breaker and forget all failures."""
        self.steps_to_trial = 0
        self.trial_steps_left = 0
        self.next_wait = self.policy.wait
        self.steps_held = 0  # steps in which the method has answered since it came back
        self.trial_sums = (0, 0.0, 0.0)  # images, regret and entropy rise

    @property
    def source_answers(self) -> bool:
        """Whether the breaker is open or half open."""
        return self.is_waiting or self.trial_steps_left > 0

    @property
    def is_waiting(self) -> bool:
        """Whether the breaker is open."""
        return self.steps_to_trial > 0

    @property
    def is_first_wait(self) -> bool:
        """Whether no trial has failed since the method last held."""
        return self.next_wait <= 2 * self.policy.wait

    def trip(self) -> None:
        """The method failed: open the breaker, and double the next wait."""
        self.trial_steps_left, self.steps_held = 0, 0
        self.steps_to_trial, self.next_wait = self.next_wait, min(2 * self.next_wait, self.policy.max_wait)

    def wait_one_step(self) -> bool:
        """Count a step in which the source answered; True if it was the last, after which the trial begins."""
        self.steps_to_trial -= 1
        if self.steps_to_trial == 0:
            self.begin_trial()
        return self.steps_to_trial == 0

    def begin_trial(self) -> None:
        """Start the trial now."""
        self.steps_to_trial, self.trial_steps_left, self.trial_sums = 0, self.policy.trial, (0, 0.0, 0.0)

    def add_trial_step(self, e: Evidence) -> bool:
        """Count a step of the trial; True if it was the last."""
        n, regret, rise = self.trial_sums
        self.trial_sums = (n + e.n, regret + e.regret, rise + e.entropy_rise)
        self.trial_steps_left -= 1
        return self.trial_steps_left == 0

    def trial_failure(self) -> str:
        """What was wrong over the whole trial, in words; empty if nothing was."""
        n, regret, rise = self.trial_sums
        policy = self.policy  # a trial tolerates the same as any other step
        if regret > policy.margin * n + policy.patience:
            return f"the regret was {regret / n:.3f} an image, allowed is {policy.margin:g}"
        if rise > policy.max_entropy_rise * n + policy.patience:
            return (
                f"predictions were less certain than the source's, by a normalized entropy of {rise / n:.3f} an image, "
                f"allowed is {policy.max_entropy_rise:g}"
            )
        return ""

    def hold_one_step(self) -> None:
        """Count a step in which the method answered well; after `next_wait` of them its failures are forgotten."""
        self.steps_held += 1
        if self.steps_held >= self.next_wait:
            self.next_wait = self.policy.wait

    def state_dict(self) -> dict[str, Any]:
        """All counters and sums."""
        return {
            "steps_to_trial": self.steps_to_trial,
            "trial_steps_left": self.trial_steps_left,
            "next_wait": self.next_wait,
            "steps_held": self.steps_held,
            "trial_sums": list(self.trial_sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.steps_to_trial, self.trial_steps_left = state["steps_to_trial"], state["trial_steps_left"]
        self.next_wait, self.steps_held = state["next_wait"], state["steps_held"]
        self.trial_sums = tuple(state["trial_sums"])
