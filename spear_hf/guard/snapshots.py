"""States of a method to roll back to: only those that were still good a while after they were taken."""

from typing import Any


class Snapshots:
    """The last good state, and the one that will be next if nothing happens.

    What harms a method shows some steps later, so a state counts as good only when the next one is taken.

    Args:
        every: steps between two states.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.clear()

    def clear(self) -> None:
        """No state yet."""
        self.good: dict[str, Any] | None = None
        self.drop()

    def drop(self) -> None:
        """Forget the state that was not good yet."""
        self.next: dict[str, Any] | None = None
        self.since = 0

    def is_due(self) -> bool:
        """One more step; whether it is time to `take`."""
        self.since += 1
        return self.since >= self.every

    def take(self, state: dict[str, Any]) -> None:
        """The state now; the one before it has proved good."""
        self.good, self.next, self.since = self.next or self.good, state, 0

    def state_dict(self) -> dict[str, Any]:
        """Both states."""
        return {"good": self.good, "next": self.next, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.good, self.next, self.since = state["good"], state["next"], state["since"]
