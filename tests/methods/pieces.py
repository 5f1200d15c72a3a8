"""What the tests of objectives share."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spear_hf.methods.learned import Learned
from spear_hf.methods.objective import Batch


def logits_of_probabilities(p: list[list[float]]) -> Tensor:
    """Logits whose softmax is p."""
    return torch.tensor(p).log()


def batch_of(
    logits: Tensor,
    x: Tensor | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
    learned: Learned | None = None,
    whole: int | None = None,
) -> Batch:
    """A batch with these logits."""
    images = torch.zeros(len(logits), 3, 8, 8) if x is None else x
    learned = learned or Learned([nn.Parameter(torch.zeros(1))])
    return Batch(images, logits, forward or (lambda _: logits), learned, whole or len(logits), logits.detach())
