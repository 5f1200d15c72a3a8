"""What the guard does about a finding: three rungs, and one rung higher where the last answer did not help."""

from typing import Any

ROLLBACK, RESET, FALLBACK = RUNGS = ("rollback", "reset", "fallback")

FIRST = {"non-finite": ROLLBACK, "drift": ROLLBACK, "collapse": RESET, "entropy": FALLBACK, "regret": FALLBACK}
"""kind of finding -> its first answer. Where the source looks better, it may be the stream that the method cannot take
rather than what it learned, so only the source is known to be safe."""


class EscalationPolicy:
    """Which answer is due.

    Args:
        memory: a finding within so many steps of the last answer gets the next rung.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.clear()

    def clear(self) -> None:
        """No answer was given yet."""
        self.last = -1
        self.since = 0

    def tick(self) -> None:
        """One more step in which the method answered."""
        self.since += 1
        if self.since > self.memory:
            self.last = -1

    def rung(self, kind: str) -> str:
        """The answer to a finding of this kind."""
        self.last = min(max(RUNGS.index(FIRST[kind]), self.last + 1), len(RUNGS) - 1)
        self.since = 0
        return RUNGS[self.last]

    def state_dict(self) -> dict[str, Any]:
        """The last rung, and how long ago it was."""
        return {"last": self.last, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.last, self.since = state["last"], state["since"]
