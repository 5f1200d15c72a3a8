"""LeanForward: which functions are replaced, and when not."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from spear_hf.lean.activation import ACTIVATIONS
from spear_hf.lean.attention import ATTENTIONS
from spear_hf.lean.convolution import CONVOLUTIONS
from spear_hf.lean.linear import LINEARS
from spear_hf.lean.normalization import NORMALIZATIONS
from spear_hf.lean.smooth import SMOOTH
from spear_hf.lean.unbind import UNBINDS

TABLE: dict[Any, Callable[..., Any]] = {
    **CONVOLUTIONS,
    **LINEARS,
    **NORMALIZATIONS,
    **ACTIVATIONS,
    **SMOOTH,
    **ATTENTIONS,
    **UNBINDS,
}
"""torch function -> its lean form, which returns NotImplemented where it has none for these arguments."""


class LeanForward(TorchFunctionMode):
    """Inside, the functions of TABLE keep only what the gradient of their input needs; for one backward pass."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        lean = TABLE.get(func)
        if lean is not None and (found := lean(*args, **kwargs)) is not NotImplemented:
            return found
        return func(*args, **kwargs)
