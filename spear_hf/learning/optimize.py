"""One optimizer step on the RSPs: gradients of them alone, the same on every process, and only finite ones."""

from typing import Any

import torch
from torch import Tensor

from spear_hf.utils.distributed import ProcessGroup


def update(loss: Tensor, optimizer: torch.optim.Optimizer, processes: ProcessGroup, scaler: Any = None) -> bool:
    """Step `optimizer` down `loss`; nothing else gets a gradient.

    Args:
        loss: a scalar, the same on every process.
        optimizer: of the RSPs.
        processes: those that computed the loss together.
        scaler: a GradScaler, for fp16. It hears of every gradient there is, and of none where a batch was skipped.

    Returns:
        False, with no parameter moved, where the gradient is not finite.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = torch.autograd.grad(loss if scaler is None else scaler.scale(loss), parameters)
    for parameter, gradient in zip(parameters, _averaged(gradients, processes), strict=True):
        parameter.grad = gradient
    if scaler is not None:
        scaler.unscale_(optimizer)
    finite = all(bool(torch.isfinite(p.grad).all()) for p in parameters)
    if scaler is not None:
        scaler.step(optimizer)  # which looks for itself
        scaler.update()
    elif finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return finite


def _averaged(gradients: tuple[Tensor, ...], processes: ProcessGroup) -> list[Tensor]:
    """Their means over the processes, in one collective."""
    if processes.count == 1:
        return list(gradients)
    flat = processes.mean(torch.cat([g.flatten() for g in gradients]))
    parts = flat.split([g.numel() for g in gradients])
    return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]
