"""How other libraries see a SpearModel: with the signature of its base, and as a classifier that pipelines know."""

import inspect
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_NAMES_OF_CLASSIFIERS = "transformers.models.auto.modeling_auto", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"


def forward_like(model: nn.Module, base: nn.Module) -> Callable[..., Any]:
    """`model.forward`, with the signature that `base.forward` has, and `adapter_names`.

    transformers' Trainer keeps the columns of a dataset that a signature names, and torch.export names inputs by it.

    Args:
        model: whose class has the forward that is called.
        base: whose arguments are shown.

    >>> import timm
    >>> from spear_hf import get_spear_model
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> str(inspect.signature(forward_like(model, model.base_model)))
    '(x: torch.Tensor, *, adapter_names=None) -> torch.Tensor'
    """
    plain = type(model).forward
    try:
        shown = inspect.signature(base.forward)
    except (TypeError, ValueError):  # a forward that is no Python function
        return MethodType(plain, model)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)  # which may come before any other kind
    names = inspect.Parameter("adapter_names", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = list(shown.parameters.values())
    at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    if "adapter_names" not in shown.parameters:
        parameters.insert(at, names)
    twin = FunctionType(plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    twin.__kwdefaults__, twin.__doc__, twin.__module__ = plain.__kwdefaults__, plain.__doc__, plain.__module__
    twin.__signature__ = shown.replace(parameters=[own, *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    return MethodType(twin, model)


def make_known_to_pipelines(name: str) -> None:
    """Let `pipeline("image-classification")` of transformers take a class of this name without a warning.

    Nothing is imported: a transformers model cannot be there before transformers' list of classifiers is.
    """
    module, attribute = _NAMES_OF_CLASSIFIERS
    known = getattr(sys.modules.get(module), attribute, None)
    if isinstance(known, dict):
        known.setdefault("spear", name)
