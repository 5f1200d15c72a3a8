"""Objective: what a method minimises. One half of a method; the other is Where."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spear_hf.baselines.learned import ParameterSet
from spear_hf.learning.objective import log_probabilities


@dataclass(frozen=True)
class Batch:
    """What an objective sees of a batch; labels are not among it.

    Args:
        x: (B, ...) images, as the model takes them.
        logits: (B, K), with a graph to what is learned.
        forward: images -> logits, once more, with a graph where gradients are enabled.
        learned: the parameters that move, and the source's values of them.
        whole: images in a whole batch of this stream, which the last one may fall short of.
        answer: (B, K), what the method answers; the logits, unless it says otherwise.
    """

    x: Tensor
    logits: Tensor
    forward: Callable[[Tensor], Tensor]
    learned: ParameterSet
    whole: int
    answer: Tensor


class Objective(Protocol):
    """A loss that may keep state. A dataclass over `Part` has everything but `__call__` already."""

    def __call__(self, batch: Batch) -> Tensor | None:
        """A scalar to be lowered, or None where nothing in the batch is reliable and no step must be taken."""
        ...

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters, JSON-ready."""
        ...

    def reset(self) -> None:
        """Forget."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""
        ...

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Go on from there."""
        ...


def entropy(logits: Tensor) -> Tensor:
    """H(p) of each answer, (B,), in nats: in [0, log K]."""
    log_p = log_probabilities(logits)
    return -(log_p.exp() * log_p).sum(-1)


def cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    """-sum_k softmax(targets)_k log softmax(logits)_k, (B,), in nats; gradients flow through both."""
    return -(log_probabilities(targets).exp() * log_probabilities(logits)).sum(-1)
