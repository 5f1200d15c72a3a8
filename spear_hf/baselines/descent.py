"""Steps down a loss that are taken whole or not at all."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spear_hf.learning.record import NON_FINITE_GRADIENT

NON_FINITE_LOSS = "the loss is not finite"


def gradients(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """dloss/dp of each parameter, in no .grad field; None where the loss does not depend on it."""
    return list(torch.autograd.grad(loss, parameters, allow_unused=True))


def why_not(loss: Tensor, found: Sequence[Tensor | None]) -> str | None:
    """Why these must not be stepped along, or None."""
    if not bool(torch.isfinite(loss)):
        return NON_FINITE_LOSS
    finite = [torch.isfinite(g).all() for g in found if g is not None]
    return None if all(bool(f) for f in finite) else NON_FINITE_GRADIENT


def step_along(optimizer: torch.optim.Optimizer, found: Sequence[Tensor | None]) -> None:
    """One optimizer step with these gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> str | None:
    """One optimizer step down the loss; why none was taken, or None."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    found = gradients(loss, parameters)
    if (refusal := why_not(loss, found)) is None:
        step_along(optimizer, found)
    return refusal
