"""One optimizer step of any method: gradients of the learned parameters alone, and no step unless all are finite."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from spear_hf.learning.record import NON_FINITE_GRADIENT, NON_FINITE_LOSS
from spear_hf.learning.stream_state import AdamMoments, Learned
from spear_hf.utils.distributed import ProcessGroup

ABSURD = 1e6  # of a loss in nats for a scale or a shift

Gradients = Sequence[Tensor | None]
"""One for each parameter; None if the loss does not depend on it."""


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """dloss/dp of each parameter; None if the loss does not depend on it. No .grad field is written.

    >>> import torch
    >>> from spear_hf.learning.optimize import gradients
    >>> w = torch.nn.Parameter(torch.tensor([3.0]))
    >>> gradients(w.square().sum(), [w])
    [tensor([6.])]
    """
    return list(torch.autograd.grad(loss, parameters, allow_unused=True))


def step_along(
    found: Gradients,
    optimizer: torch.optim.Optimizer,
    processes: ProcessGroup | None = None,
    scaler: Any = None,
    lock: AbstractContextManager[Any] | None = None,
) -> bool:
    """Take one optimizer step with these gradients.

    Args:
        found: a gradient for each parameter of the optimizer, in its order.
        optimizer: of the learned parameters.
        processes: average the gradients over these; None is this process alone.
        scaler: a GradScaler, for fp16, that the loss was scaled by. A gradient that is not finite lowers its scale.
        lock: held while parameters are written.

    Returns:
        False, with no parameter moved, if a gradient is not finite.

    >>> import torch
    >>> from spear_hf.learning.optimize import step_along
    >>> w = torch.nn.Parameter(torch.tensor([3.0]))
    >>> step_along([torch.tensor([6.0])], torch.optim.SGD([w], lr=0.5)), w.item()
    (True, 0.0)
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, _averaged(found, processes), strict=True):
        parameter.grad = gradient
    if scaler is not None:
        scaler.unscale_(optimizer)
    finite = are_finite([p.grad for p in parameters])
    with lock or nullcontext():
        if scaler is not None:
            scaler.step(optimizer)  # skips the step by itself if a gradient is not finite
            scaler.update()
        elif finite:
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return finite


def update(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    processes: ProcessGroup | None = None,
    scaler: Any = None,
    lock: AbstractContextManager[Any] | None = None,
) -> bool:
    """Take one optimizer step down `loss`; nothing but the optimizer's parameters gets a gradient.

    Args:
        loss: a scalar, the same on every process.
        optimizer: of the learned parameters.
        processes: those that computed the loss together; None is this process alone.
        scaler: a GradScaler, for fp16. Call `update` only for batches that are learned from: each call counts as one
            of its steps.
        lock: held while parameters are written.

    Returns:
        False, with no parameter moved, if a gradient is not finite.

    >>> import torch
    >>> from spear_hf.learning.optimize import update
    >>> w = torch.nn.Parameter(torch.tensor([3.0]))
    >>> update(w.square().sum(), torch.optim.SGD([w], lr=0.5)), w.item()
    (True, 0.0)
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    found = gradients(loss if scaler is None else scaler.scale(loss), parameters)
    return step_along(found, optimizer, processes, scaler, lock)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> str | None:
    """Take one optimizer step down `loss` on this process; returns why none was taken, or None.

    >>> import torch
    >>> from spear_hf.learning.optimize import descend
    >>> w = torch.nn.Parameter(torch.tensor([3.0]))
    >>> descend(w.sum() * float("nan"), torch.optim.SGD([w], lr=0.5))
    'the loss is not finite'
    """
    if not bool(torch.isfinite(loss.detach())):
        return NON_FINITE_LOSS
    return None if update(loss, optimizer) else NON_FINITE_GRADIENT


def are_finite(found: Gradients) -> bool:
    """Whether every number in these gradients is finite, and none is absurd; None counts as finite.

    Adam would remember the square of one absurd gradient for thousands of steps, and hardly move in them.

    >>> import torch
    >>> from spear_hf.learning.optimize import are_finite
    >>> are_finite([torch.ones(2), None]), are_finite([torch.tensor([float("inf")])])
    (True, False)
    """
    return all(bool((g.abs() < ABSURD).all()) for g in found if g is not None)


def adam_steps(
    learned: Sequence[Learned], gradients: Tensor, rates: Sequence[float], betas: tuple[float, float]
) -> list[Learned]:
    """One Adam step of each of S streams, by torch's own function; what came in is not written.

    Args:
        learned: values and moments, (P,) each, of each stream.
        gradients: (S, P).
        rates: the learning rate of each stream.
        betas: Adam's decay rates.
    """
    after = [
        Learned(
            each.flat.clone(),
            AdamMoments(*(m.clone() for m in (each.moments.exp_avg, each.moments.exp_avg_sq, each.moments.step))),
        )
        for each in learned
    ]
    for rate in dict.fromkeys(rates):
        same = [(a, g) for a, g, r in zip(after, gradients.unbind(), rates, strict=True) if r == rate]
        adam(
            [a.flat for a, _ in same],
            [g for _, g in same],
            [a.moments.exp_avg for a, _ in same],
            [a.moments.exp_avg_sq for a, _ in same],
            [],
            [a.moments.step for a, _ in same],
            foreach=len(same) > 1,
            amsgrad=False,
            beta1=betas[0],
            beta2=betas[1],
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
    return after


def _averaged(found: Gradients, processes: ProcessGroup | None) -> list[Tensor | None]:
    """Their means over the processes, in one collective."""
    if processes is None or processes.count == 1:
        return list(found)
    present = [g for g in found if g is not None]
    flat = processes.mean(torch.cat([g.flatten() for g in present]))
    parts = iter(flat.split([g.numel() for g in present]))
    return [None if g is None else next(parts).view_as(g) for g in found]
