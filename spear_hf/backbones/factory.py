"""A model of the user's own: "package.module:factory", as on the command line of uvicorn or gunicorn."""

import importlib
import os
import re
import sys
from typing import Any

from torch import nn

from spear_hf.errors import ModelNotFoundError
from spear_hf.utils.validation import first_line

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
LIBRARY_PREFIXES = ("torchvision:",)


def is_factory(name: str) -> bool:
    """Whether a name has the form package.module:factory.

    >>> from spear_hf.backbones.factory import is_factory
    >>> is_factory("my_project.models:make_net"), is_factory("local-dir:runs/net"), is_factory("torchvision:resnet18")
    (True, False, False)
    """
    return _FACTORY.fullmatch(name) is not None and not name.startswith(LIBRARY_PREFIXES)


def build_own(name: str, **arguments: Any) -> nn.Module:
    """The model that a function of the user's own returns; runs that code, so the name must come from the user.

    >>> from spear_hf.backbones.factory import build_own
    >>> build_own("timm.models:test_resnet").num_classes
    1000

    Args:
        name: "package.module:factory"; modules in the working directory are found too. What it names is a function
            that returns the model, or the model itself.
        arguments: of the factory.

    Raises:
        ModelNotFoundError: no such module or function, one that fails, or one that returns no nn.Module.
    """
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{name!r} could not be imported ({first_line(error)}); give package.module:factory, and start the command "
            "where `python -c 'import package.module'` works"
        ) from error
    if isinstance(found, nn.Module):
        return found
    try:
        model = found(**arguments)
    except Exception as error:  # the user's own code, which can raise anything
        raise ModelNotFoundError(
            f"{name} failed ({type(error).__name__}: {first_line(error)}); it is called "
            f"with {', '.join(arguments) or 'no arguments'}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelNotFoundError(f"{name} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model
