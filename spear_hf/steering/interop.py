"""How other libraries see a SpearModel: with the signature of its base, and as a classifier that pipelines know."""

import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

from torch import nn

from spear_hf.utils.signatures import bound_with_signature, parameters_of, with_keywords

_NAMES_OF_CLASSIFIERS = "transformers.models.auto.modeling_auto", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"


def forward_like(model: nn.Module, base: nn.Module) -> Callable[..., Any]:
    """`model.forward`, with the signature that `base.forward` has, and `adapter_names`.

    transformers' Trainer keeps the columns of a dataset that a signature names, and torch.export names inputs by it.

    Args:
        model: whose class has the forward that is called.
        base: whose arguments are shown.

    >>> import inspect, timm
    >>> from spear_hf import get_spear_model
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> str(inspect.signature(forward_like(model, model.base_model)))
    '(x: torch.Tensor, *, adapter_names=None)'
    """
    plain, shown = type(model).forward, parameters_of(base.forward)
    if shown is None:
        return MethodType(plain, model)
    return bound_with_signature(model, cast(FunctionType, plain), with_keywords(shown, "adapter_names"))


def make_known_to_pipelines(name: str) -> None:
    """Let `pipeline("image-classification")` of transformers take a class of this name without a warning.

    Nothing is imported: a transformers model cannot be there before transformers' list of classifiers is.
    """
    module, attribute = _NAMES_OF_CLASSIFIERS
    known = getattr(sys.modules.get(module), attribute, None)
    if isinstance(known, dict):
        known.setdefault("spear", name)
