"""Where a lean form may stand in for a function: a gradient flows through one input, and everything else is frozen."""

from typing import Any

import torch
from torch import Tensor


def flows_through(x: Any, *others: Any) -> bool:
    """Whether x is what a gradient is wanted of, and none of the others.

    False under gradient checkpointing too: its second forward runs outside of every mode, and has to save the same
    tensors as the first.
    """
    if not isinstance(x, Tensor) or not x.requires_grad or not torch.is_grad_enabled():
        return False
    return not any(isinstance(t, Tensor) and t.requires_grad for t in others) and not is_checkpointed()


def is_checkpointed() -> bool:
    """Whether this runs inside `torch.utils.checkpoint.checkpoint`."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # pyright: ignore[reportAttributeAccessIssue]
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"
