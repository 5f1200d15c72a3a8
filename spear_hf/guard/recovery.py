"""What a guard does about a finding: EscalationPolicy chooses the action, Snapshots keeps states to roll back to."""

from typing import Any

ROLLBACK, RESET, FALLBACK = ACTIONS = ("rollback", "reset", "fallback")

FIRST_ACTION = {
    "non-finite": ROLLBACK,
    "drift": ROLLBACK,
    "collapse": RESET,
    "entropy": FALLBACK,
    "regret": FALLBACK,
}
"""Kind of finding -> the first action. Where the source looks better, the stream may be the reason rather than what was
learned, so only the source is known to be safe."""


class EscalationPolicy:
    """Which action a finding gets: the first one for its kind, or a harder one if the last action did not help.

    Args:
        memory: a finding within so many steps of the last action gets the next harder action.

    >>> from spear_hf.guard.recovery import EscalationPolicy
    >>> escalation = EscalationPolicy(memory=64)
    >>> [escalation.action("drift") for _ in range(4)]
    ['rollback', 'reset', 'fallback', 'fallback']
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.clear()

    def clear(self) -> None:
        """Forget the last action."""
        self.last = -1  # index into ACTIONS
        self.steps_since = 0

    def hold_one_step(self) -> None:
        """Count a step in which the method answered well."""
        self.steps_since += 1
        if self.steps_since > self.memory:
            self.last = -1

    def action(self, kind: str) -> str:
        """The action for a finding of this kind; it becomes the last action."""
        self.last = min(max(ACTIONS.index(FIRST_ACTION[kind]), self.last + 1), len(ACTIONS) - 1)
        self.steps_since = 0
        return ACTIONS[self.last]

    def state_dict(self) -> dict[str, Any]:
        """The last action, and how many steps ago it was."""
        return {"last": self.last, "steps_since": self.steps_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.last, self.steps_since = state["last"], state["steps_since"]


class Snapshots:
    """The last good state of a method, and a newer one that is not yet known to be good.

    Harm shows some steps after its cause, so a state counts as good only when the next one is taken.

    Args:
        every: steps between two states.

    >>> from spear_hf.guard.recovery import Snapshots
    >>> snapshots = Snapshots(every=1)
    >>> for number in range(3):
    ...     if snapshots.is_due():
    ...         snapshots.take({"step": number})
    >>> snapshots.good
    {'step': 1}
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.clear()

    def clear(self) -> None:
        """Forget both states."""
        self.good: dict[str, Any] | None = None
        self.drop()

    def drop(self) -> None:
        """Forget the newer state."""
        self.newer: dict[str, Any] | None = None
        self.steps_since = 0

    def is_due(self) -> bool:
        """Count a step; True if it is time to `take` a state."""
        self.steps_since += 1
        return self.steps_since >= self.every

    def take(self, state: dict[str, Any]) -> None:
        """Keep `state`; the state taken before it is now known to be good."""
        self.good, self.newer, self.steps_since = self.newer or self.good, state, 0

    def state_dict(self) -> dict[str, Any]:
        """Both states."""
        return {"good": self.good, "newer": self.newer, "steps_since": self.steps_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.good, self.newer, self.steps_since = state["good"], state["newer"], state["steps_since"]
