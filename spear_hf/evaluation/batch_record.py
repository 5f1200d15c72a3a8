"""BatchRecord: what one batch of a run gave; a line of steps.jsonl."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from spear_hf.learning.record import StepRecord


@dataclass(frozen=True)
class BatchRecord:
    """What one batch gave, over all processes.

    Args:
        batch: its number in the stream, from 0.
        domain: its name.
        n: images.
        wrong: how many answers of each method were wrong.
        answers: how often the last method answered each class that it answered at all.
        labels: how often each class was right.
        step: what the last method did, where it keeps a StepRecord.
        deviations: ||gamma - 1|| and ||beta|| of each RSP after the step, by boundary key; empty where nobody looked.
    """

    batch: int
    domain: str
    n: int
    wrong: dict[str, int]
    answers: dict[int, int] = field(default_factory=dict)
    labels: dict[int, int] = field(default_factory=dict)
    step: StepRecord | None = None
    deviations: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, but for the keys of `answers` and `labels`, which JSON makes strings of."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BatchRecord":
        """What `to_dict` gave, also after JSON made strings of the classes and lists of the pairs."""
        step = data["step"]
        return cls(
            batch=data["batch"],
            domain=data["domain"],
            n=data["n"],
            wrong=dict(data["wrong"]),
            answers={int(c): count for c, count in data["answers"].items()},
            labels={int(c): count for c, count in data["labels"].items()},
            step=None if step is None else _step(step),
            deviations={key: (gamma, beta) for key, (gamma, beta) in data["deviations"].items()},
        )


def _step(data: Mapping[str, Any]) -> StepRecord:
    """What StepRecord.to_dict gave, after JSON made lists of tuples."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return StepRecord(**fields)


def class_counts(classes: Tensor, num_classes: int) -> Tensor:
    """(num_classes,) int64, how often each class occurs; classes (B,) in 0..num_classes-1."""
    return classes.cpu().bincount(minlength=num_classes)


def present(counts: Tensor) -> dict[int, int]:
    """The classes that occur, with how often."""
    return {int(c): int(counts[c]) for c in counts.nonzero().flatten()}
