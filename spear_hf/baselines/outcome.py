"""Outcome: what one step of a learner did, and why it did not learn."""

from dataclasses import dataclass

UNRELIABLE = "no image of this batch is reliable enough to learn from"


@dataclass(frozen=True)
class Outcome:
    """What one step did.

    Args:
        step: how many batches came before.
        batch_size: B.
        adapted: whether what is learned moved.
        skipped: why it did not; None where it did.
        loss: what was minimised, before the step; None where there was none.
    """

    step: int
    batch_size: int
    adapted: bool
    skipped: str | None
    loss: float | None
