"""LeanForward: the functions that are replaced, and the mode that replaces them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from spear_hf.lean.activation import ACTIVATIONS
from spear_hf.lean.affine import AFFINE
from spear_hf.lean.attention import ATTENTION

REPLACEMENTS: dict[Any, Callable[..., Any]] = {**AFFINE, **ACTIVATIONS, **ATTENTION}
"""torch function -> its replacement, which returns NotImplemented for arguments that it leaves to PyTorch."""


class LeanForward(TorchFunctionMode):
    """A context in which frozen layers keep for the backward pass only what the gradient of their input needs.

    Only the forward has to run inside. Outputs are the same bits as outside. Gradients of gradients are not supported.

    >>> import torch
    >>> from spear_hf.lean import LeanForward
    >>> frozen = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).requires_grad_(False)
    >>> x = torch.randn(1, 3, 4, 4, requires_grad=True)
    >>> with LeanForward():
    ...     y = frozen(x)
    >>> y.sum().backward()
    >>> torch.equal(y, frozen(x))
    True
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return call_lean(func, args, kwargs or {})


def call_lean(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """func(*args, **kwargs), by its replacement where it has one for these arguments.

    >>> import torch
    >>> from spear_hf.lean.mode import call_lean
    >>> call_lean(torch.relu, (torch.tensor([-1.0, 2.0]),), {})
    tensor([0., 2.])
    """
    replacement = REPLACEMENTS.get(func)
    if replacement is not None and (output := replacement(*args, **kwargs)) is not NotImplemented:
        return output
    return func(*args, **kwargs)
