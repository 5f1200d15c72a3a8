"""Counts of right and wrong answers, by domain; errors are percentages, as in the paper's tables."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spear_hf.errors import DataError


def count_wrong(logits: Tensor, labels: Tensor, classes: Tensor | None = None) -> int:
    """How many of the answers are wrong: logits (B, K), labels (B,) in 0..K-1; B may be 0.

    Args:
        classes: (S,) those that can occur, where the data has fewer than the model; no other can be the answer.
    """
    if len(labels) and (int(labels.max()) >= logits.shape[1] or int(labels.min()) < 0):
        raise DataError(
            f"labels {int(labels.min())}..{int(labels.max())} do not fit a model with {logits.shape[1]} classes; "
            "map the dataset's labels to the model's, or choose the model that was trained on this label set"
        )
    logits, labels = logits.cpu(), labels.cpu()
    answers = logits.argmax(1) if classes is None else classes[logits[:, classes].argmax(1)]
    return int((answers != labels).sum())


@dataclass
class ErrorCount:
    """A running classification error."""

    wrong: int = 0
    total: int = 0

    def add(self, wrong: int, total: int) -> None:
        """Count a batch of `total` answers, `wrong` of them wrong."""
        self.wrong += wrong
        self.total += total

    @property
    def error(self) -> float:
        """In percent; NaN before the first batch."""
        return 100 * self.wrong / self.total if self.total else float("nan")


@dataclass
class DomainCounts:
    """domain -> method -> ErrorCount, in the order in which the domains came."""

    counts: dict[str, dict[str, ErrorCount]] = field(default_factory=dict)

    def of(self, domain: str, method: str) -> ErrorCount:
        """The count of one cell, made when first asked for."""
        return self.counts.setdefault(domain, {}).setdefault(method, ErrorCount())


def mean(values: list[float]) -> float:
    """The unweighted mean, as the paper averages over corruptions; NaN for none."""
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else float("nan")
