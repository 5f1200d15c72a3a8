"""What a tracker (tensorboard, trackio, wandb, through `Accelerator(log_with=...)`) is told of one batch."""

from collections.abc import Mapping
from typing import Any

from spear_hf.learning.record import StepRecord

_NAMES = {
    "entropy": "gate/entropy",
    "adapted": "gate/adapted",
    "loss": "loss/total",
    "entropy_loss": "loss/entropy",
    "diversity_loss": "loss/diversity",
    "anchor_loss": "loss/anchor",
    "gamma_deviation": "rsp/gamma_deviation",
    "beta_deviation": "rsp/beta_deviation",
}


def tracked(errors: Mapping[str, float], record: Any) -> dict[str, float]:
    """The running error of each method in this domain, in percent, and the numbers of the StepRecord, if any."""
    values = {f"error/{name}": error for name, error in errors.items()}
    if isinstance(record, StepRecord):
        fields = record.to_dict()
        values |= {name: float(fields[key]) for key, name in _NAMES.items() if fields[key] is not None}
    return values
