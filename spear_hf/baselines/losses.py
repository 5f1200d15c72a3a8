"""What a method minimises, answers and does after each step: the three pieces that a Learner is composed of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spear_hf.baselines.component import Component
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.learning.objective import log_probabilities


@dataclass(frozen=True)
class Batch:
    """What an objective sees of a batch; labels are not part of it.

    Args:
        x: (B, ...) images, as the model takes them.
        logits: (B, K), with a graph to the learned parameters.
        forward: images -> logits, for further forwards; with a graph where gradients are enabled.
        learned: the learned parameters and the source's values of them.
        nominal_batch_size: the stream's batch size; the last batch may have fewer images.
        answer: (B, K), what the method answers; the logits unless an Answer replaces them.

    >>> import torch
    >>> from spear_hf.baselines.losses import Batch
    >>> from spear_hf.baselines.parameter_set import ParameterSet
    >>> x, model = torch.randn(4, 8), torch.nn.Linear(8, 3)
    >>> logits = model(x)
    >>> batch = Batch(x, logits, model, ParameterSet(list(model.parameters())), 4, logits.detach())
    """

    x: Tensor
    logits: Tensor
    forward: Callable[[Tensor], Tensor]
    learned: ParameterSet
    nominal_batch_size: int
    answer: Tensor


class Objective(Protocol):
    """A loss that may keep state. A dataclass derived from `Component` needs only `__call__`.

    >>> from dataclasses import dataclass
    >>> from spear_hf.baselines.component import Component
    >>> from spear_hf.baselines.losses import Batch, entropy
    >>> @dataclass
    ... class HalfEntropy(Component):
    ...     def __call__(self, batch: Batch):
    ...         return entropy(batch.logits).mean() / 2
    """

    def __call__(self, batch: Batch) -> Tensor | None:
        """The loss, a scalar; None if no image of the batch is reliable, and then no step is taken."""
        ...

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters, JSON-ready."""
        ...

    def reset(self) -> None:
        """Forget the state."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state."""
        ...

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Continue from a `state_dict`."""
        ...


class Answer(Protocol):
    """Gives the answer of a method that does not answer with its logits; a Component with `answer`.

    >>> import torch
    >>> from spear_hf.baselines.losses import Answer, OwnLogits
    >>> answer: Answer = OwnLogits()
    """

    def answer(self, batch: Batch) -> Tensor:
        """(B, K)."""
        ...


class Upkeep(Protocol):
    """Changes the learned parameters, or an average of them, after each step; a Component with `maintain`.

    >>> from spear_hf.baselines.losses import Upkeep
    >>> from spear_hf.baselines.parameter_set import MeanTeacher
    >>> upkeep: Upkeep = MeanTeacher()
    """

    def maintain(self, learned: ParameterSet) -> None:
        """Called after each step that was taken."""
        ...


@dataclass
class OwnLogits(Component):
    """Answers with the model's own logits.

    >>> from spear_hf.baselines.losses import OwnLogits
    >>> OwnLogits().settings()
    {'kind': 'OwnLogits'}
    """

    def answer(self, batch: Batch) -> Tensor:
        """(B, K)."""
        return batch.logits


def entropy(logits: Tensor) -> Tensor:
    """H(p) of each answer, (B,), in nats: in [0, log K].

    >>> import torch
    >>> from spear_hf.baselines.losses import entropy
    >>> entropy(torch.zeros(1, 4))
    tensor([1.3863])
    """
    log_p = log_probabilities(logits)
    return -(log_p.exp() * log_p).sum(-1)


def cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    """-sum_k softmax(targets)_k log softmax(logits)_k, (B,), in nats; gradients flow through both.

    >>> import torch
    >>> from spear_hf.baselines.losses import cross_entropy
    >>> cross_entropy(torch.tensor([[9.0, -9.0]]), torch.zeros(1, 2))
    tensor([0.6931])
    """
    return -(log_probabilities(targets).exp() * log_probabilities(logits)).sum(-1)
