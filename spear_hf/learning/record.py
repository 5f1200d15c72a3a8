"""StepRecord: what one step of a method did, and why it did not learn."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

BUDGET = "budget: one batch in adapt_every is learned from"
CONFIDENT = "confident: mean entropy below tau"
FEW_CLASSES = "the stream shows few classes at a time"
NON_FINITE_LOGITS = "the model's logits are not finite"
NON_FINITE_LOSS = "the loss is not finite"
NON_FINITE_GRADIENT = "the gradient is not finite"
UNRELIABLE = "no image of this batch is reliable enough to learn from"
GUARDED = "the guard let nothing be learned"


@dataclass(frozen=True)
class StepRecord:
    """What one step did, of Spear and of every rival; a field that a method does not have is None.

    Args:
        step: how many batches came before.
        batch_size: B, over all processes.
        entropy: mean normalised entropy of the answer, in [0, 1]; of its first view if it has several.
        adapted: whether the learned parameters moved.
        skipped: why they did not, or not in each of the `steps` of this batch; None if all steps were taken.
        entropy_loss, diversity_loss, anchor_loss: Eqs. 7, 8 and 9 at the first step; None if skipped, or for a rival.
        loss: what was minimised, before the first step: Eq. 11, or a rival's objective; None if skipped.
        gamma_deviation, beta_deviation: ||gamma - 1|| and ||beta|| over all RSPs, after the step; None for a rival.
        single_value_norms: batch-norm calls answered with the source's statistics, since a channel held one value.
        new_domain: whether the statistics jumped, and what was remembered of them was forgotten (`domain_jump`).
        alpha: how much of the batch's statistics the batch norms took, the mean over them (`alpha_images`); None for a
            rival, and without batch norms.
        events: what a Guard saw and did in this step, one sentence each.

    >>> from spear_hf import StepRecord
    >>> record = StepRecord(step=0, batch_size=16, entropy=0.4, adapted=True, skipped=None, loss=1.2)
    >>> record.to_dict()["gamma_deviation"] is None
    True
    """

    step: int
    batch_size: int
    entropy: float
    adapted: bool
    skipped: str | None
    entropy_loss: float | None = None
    diversity_loss: float | None = None
    anchor_loss: float | None = None
    loss: float | None = None
    gamma_deviation: float | None = None
    beta_deviation: float | None = None
    single_value_norms: int = 0
    events: tuple[str, ...] = ()
    new_domain: bool = False
    alpha: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


class LossFields(TypedDict):
    """The fields of a StepRecord that say what was minimised."""

    entropy_loss: float | None
    diversity_loss: float | None
    anchor_loss: float | None
    loss: float | None


def loss_fields(minimised: Sequence[float] | None) -> LossFields:
    """What was minimised: entropy, diversity and anchor loss, and their weighted sum; None where nothing was."""
    entropy, diversity, anchor, total = minimised or (None, None, None, None)
    return LossFields(entropy_loss=entropy, diversity_loss=diversity, anchor_loss=anchor, loss=total)
