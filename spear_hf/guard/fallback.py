"""The time in which the source answers: a wait, a trial of the method in the dark, and its return or a longer wait.

It is a circuit breaker: open, half open, closed. A trial costs no answer, only time, and the waits save more of it: a
stream that never suits the method is answered as the source would, at little more than the source's cost.
"""

from typing import Any

from spear_hf.guard.evidence import Evidence
from spear_hf.guard.policy import GuardPolicy


class CircuitBreaker:
    """How long the source goes on answering, and how the method did on trial."""

    def __init__(self, policy: GuardPolicy) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """The method answers, and never failed."""
        self.waiting = 0  # steps until a trial begins
        self.left = 0  # steps of the trial that are left
        self.wait = self.policy.wait  # how long the next wait is
        self.held = 0  # steps the method has held since it came back
        self.sums = (0, 0.0, 0.0)  # images, regret and entropy rise of the trial

    @property
    def is_on(self) -> bool:
        """Whether the source answers."""
        return self.waiting > 0 or self.left > 0

    @property
    def is_first(self) -> bool:
        """Whether no trial has failed since the method last held."""
        return self.wait <= 2 * self.policy.wait

    def start(self) -> None:
        """The method failed: wait, and twice as long the next time."""
        self.left, self.held = 0, 0
        self.waiting, self.wait = self.wait, min(2 * self.wait, self.policy.max_wait)

    def tick(self) -> bool:
        """One more step of waiting; True where it was the last and the trial begins."""
        self.waiting -= 1
        if self.waiting == 0:
            self.begin()
        return self.waiting == 0

    def begin(self) -> None:
        """Start the trial now."""
        self.waiting, self.left, self.sums = 0, self.policy.trial, (0, 0.0, 0.0)

    def add(self, e: Evidence) -> bool:
        """One more step of the trial; True where it was the last."""
        n, regret, rise = self.sums
        self.sums = (n + e.n, regret + e.regret, rise + e.entropy_rise)
        self.left -= 1
        return self.left == 0

    def failure(self) -> str:
        """What was wrong over the whole trial, in words; empty where nothing was."""
        n, regret, rise = self.sums
        patience = self.policy.patience  # what is tolerated is the same as outside a trial
        if regret > self.policy.margin * n + patience:
            return f"regret {regret / n:.3f} an image, allowed is {self.policy.margin:g}"
        if rise > self.policy.max_entropy_rise * n + patience:
            return f"answers {rise / n:.3f} less sure than the source's, allowed is {self.policy.max_entropy_rise:g}"
        return ""

    def hold(self) -> None:
        """One more step in which the method answered; after as many as its longest wait its failures are forgotten."""
        self.held += 1
        if self.held >= self.wait:
            self.wait = self.policy.wait

    def state_dict(self) -> dict[str, Any]:
        """All counters."""
        counters = {"waiting": self.waiting, "left": self.left, "wait": self.wait, "held": self.held}
        return counters | {"sums": list(self.sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.waiting, self.left, self.wait, self.held = (state[k] for k in ("waiting", "left", "wait", "held"))
        self.sums = tuple(state["sums"])
