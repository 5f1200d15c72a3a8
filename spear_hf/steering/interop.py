"""How other libraries see a SpearModel: with the signature of its base, and as a classifier that pipelines know."""

import inspect
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

from torch import nn

from spear_hf.utils.signatures import bound_with_signature, parameters_of, with_keywords

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMES_OF_CLASSIFIERS = "transformers.models.auto.modeling_auto", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"


def forward_like(model: nn.Module, base: nn.Module) -> Callable[..., Any]:
    """`model.forward`, with the signature that `base.forward` has, and what it takes besides.

    That is `pixel_values`, by which the base's first argument may always go, and `adapter_names`. transformers' Trainer
    keeps the columns of a dataset that a signature names, and torch.export names inputs by it.

    Args:
        model: whose class has the forward that is called.
        base: whose arguments are shown.

    >>> import timm
    >>> from spear_hf import get_spear_model
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> str(inspect.signature(forward_like(model, model.base_model)))
    '(x: torch.Tensor = None, *, pixel_values=None, adapter_names=None)'
    """
    plain, shown = type(model).forward, parameters_of(base.forward)
    if shown is None:
        return MethodType(plain, model)
    if all(each.name != "pixel_values" for each in shown):
        shown = _with_first_optional(shown)
    return bound_with_signature(model, cast(FunctionType, plain), with_keywords(shown, "pixel_values", "adapter_names"))


def _with_first_optional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The first one may be left out, unless another one that has no default comes after it."""
    required = [p for p in parameters if p.default is p.empty and p.kind in _POSITIONAL]
    if len(required) != 1 or required[0] is not parameters[0]:
        return parameters
    return [parameters[0].replace(default=None), *parameters[1:]]


def takes_labels(base: nn.Module) -> bool:
    """Whether `base` can be given labels.

    >>> takes_labels(nn.Linear(3, 2))
    False
    """
    shown = parameters_of(base.forward)
    return shown is None or any(p.name == "labels" or p.kind is inspect.Parameter.VAR_KEYWORD for p in shown)


def make_known_to_pipelines(name: str) -> None:
    """Let `pipeline("image-classification")` of transformers take a class of this name without a warning.

    Nothing is imported: a transformers model cannot be there before transformers' list of classifiers is.
    """
    module, attribute = _NAMES_OF_CLASSIFIERS
    known = getattr(sys.modules.get(module), attribute, None)
    if isinstance(known, dict):
        known.setdefault("spear", name)
