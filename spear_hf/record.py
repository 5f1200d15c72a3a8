"""StepRecord: what one step did, and why it did not learn."""

from dataclasses import asdict, dataclass
from typing import Any

from spear_hf.objective import Losses

CONFIDENT = "confident: mean entropy below tau"
NON_FINITE_LOGITS = "the model's logits are not finite"
NON_FINITE_GRADIENT = "the gradient is not finite"


@dataclass(frozen=True)
class StepRecord:
    """What one step did.

    Args:
        step: how many batches came before.
        batch_size: B, over all processes.
        entropy: mean normalised entropy of the answer, in [0, 1].
        adapted: whether the RSPs moved.
        skipped: why they did not, or did not on every one of the `steps`; None where all went through.
        entropy_loss, diversity_loss, anchor_loss, loss: Eqs. 7, 8, 9 and 11 at the first step; None where skipped.
        gamma_deviation, beta_deviation: ||gamma - 1|| and ||beta|| over all RSPs, after the step.
        single_value_norms: batch-norm calls answered with the source's statistics, since a channel held one value.
    """

    step: int
    batch_size: int
    entropy: float
    adapted: bool
    skipped: str | None
    entropy_loss: float | None
    diversity_loss: float | None
    anchor_loss: float | None
    loss: float | None
    gamma_deviation: float
    beta_deviation: float
    single_value_norms: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def loss_fields(losses: Losses | None) -> dict[str, float | None]:
    """The fields of a StepRecord that say what was minimised."""
    if losses is None:
        return dict.fromkeys(("entropy_loss", "diversity_loss", "anchor_loss", "loss"))
    return {
        "entropy_loss": float(losses.entropy),
        "diversity_loss": float(losses.diversity),
        "anchor_loss": float(losses.anchor),
        "loss": float(losses.total),
    }
