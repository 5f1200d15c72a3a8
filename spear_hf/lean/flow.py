"""When a replacement applies, which tokens have a gradient, and how much a backward computes at once."""

import sys
from typing import Any

import torch
from torch import Tensor

_CHECKPOINT = "torch.utils.checkpoint"
_AUTOGRAD: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
_TOP_HOOKS: Any = getattr(_AUTOGRAD, "_top_saved_tensors_default_hooks", None)  # torch before 2.8 has none


def flows_through(x: Any, *others: Any) -> bool:
    """Whether a gradient is computed for x and for none of `others`; False under gradient checkpointing.

    Args:
        x: the input of a layer.
        others: its weights, None where it has none.

    >>> import torch
    >>> from spear_hf.lean.flow import flows_through
    >>> x, weight = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> flows_through(x, weight, None), flows_through(x, x), flows_through(weight)
    (True, False, False)
    """
    if not isinstance(x, Tensor) or not x.requires_grad or not torch.is_grad_enabled():
        return False
    return not any(isinstance(t, Tensor) and t.requires_grad for t in others) and not is_checkpointed()


def is_checkpointed() -> bool:
    """Whether this runs inside `torch.utils.checkpoint.checkpoint`.

    Checkpointing runs its part of the network twice: now, and again during the backward pass, when no mode is active
    any more. It raises an error unless both runs save the same tensors (in number, shape and dtype), so the first run
    must save what PyTorch's own functions save. Checkpointing is recognised by its hooks for saved tensors.

    >>> from spear_hf.lean.flow import is_checkpointed
    >>> is_checkpointed()
    False
    """
    if _TOP_HOOKS is None:
        return _is_called_from(_CHECKPOINT)
    hooks = _TOP_HOOKS(False)
    return hooks is not None and getattr(hooks[0], "__module__", "") == _CHECKPOINT


def _is_called_from(module: str) -> bool:
    """Whether a function of this module is among those that wait for the one that runs."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def tokens_with_gradient(dy: Tensor) -> Tensor | None:
    """The indices of the tokens at which dy of (..., N, C) is not zero; None where a subset would save little.

    A vision transformer that classifies its class token has, above the last attention, a gradient at that one token and
    zeros at all others, and multiplying zeros takes as long as multiplying anything else.

    Returns:
        At most N / 2 indices along the axis of the tokens, or None for more of them. None on other devices than a CPU
        too: the indices depend on values, for which the program would have to wait.

    >>> import torch
    >>> from spear_hf.lean.flow import tokens_with_gradient
    >>> dy = torch.zeros(1, 4, 2)
    >>> dy[:, 0] = 1.0
    >>> tokens_with_gradient(dy)
    tensor([0])
    >>> tokens_with_gradient(torch.ones(1, 4, 2)) is None
    True
    """
    # A gradient at the last token mostly means one at every token, as under mean pooling: no need to look further.
    if dy.device.type != "cpu" or dy.dim() < 3 or bool(dy[..., -1, :].any()):
        return None
    has_gradient = (dy.amax(-1) != 0) | (dy.amin(-1) != 0)  # four times as fast as any(-1)
    tokens = has_gradient.flatten(0, -2).any(0).nonzero().squeeze(1)
    return tokens if 2 * len(tokens) <= dy.shape[-2] else None


def scatter_tokens(part: Tensor, tokens: Tensor, count: int) -> Tensor:
    """A tensor of (..., count, C) with `part` at `tokens` and zeros elsewhere.

    >>> import torch
    >>> from spear_hf.lean.flow import scatter_tokens
    >>> scatter_tokens(torch.ones(1, 1, 2), torch.tensor([0]), 3)
    tensor([[[1., 1.],
             [0., 0.],
             [0., 0.]]])
    """
    scattered = part.new_zeros(*part.shape[:-2], count, part.shape[-1])
    return scattered.index_copy_(-2, tokens, part)


def part_size(x: Tensor, on_cpu: int) -> int:
    """How many numbers a long computation on x's device treats at once.

    On a CPU it is `on_cpu`, which fits its cache. Elsewhere 2^24 (64 MiB in fp32), because each part costs a launch.

    >>> import torch
    >>> from spear_hf.lean.flow import part_size
    >>> part_size(torch.ones(2), on_cpu=2**18)
    262144
    """
    return on_cpu if x.device.type == "cpu" else 2**24
