"""A method that shows the arguments of another one, for libraries that look at signatures."""

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

_LAST = inspect.Parameter.VAR_KEYWORD


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function or method; None where it is no Python function.

    >>> [parameter.name for parameter in parameters_of(lambda x, *, y=1: x)]
    ['x', 'y']
    """
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def with_keywords(parameters: Sequence[inspect.Parameter], *names: str) -> list[inspect.Parameter]:
    """These parameters and further ones, None by default, that are given by name.

    >>> [str(p) for p in with_keywords(parameters_of(lambda x, **rest: x), "labels")]
    ['x', 'labels=None', '**rest']
    """
    there = {parameter.name for parameter in parameters}
    new = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in names if n not in there]
    at = len(parameters) - (bool(parameters) and parameters[-1].kind is _LAST)
    return [*parameters[:at], *new, *parameters[at:]]


def bound_with_signature(
    owner: object, function: FunctionType, parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """`function` as a method of `owner`, for which `inspect.signature` gives these parameters.

    >>> def forward(self, *args): return args
    >>> method = bound_with_signature("owner", forward, parameters_of(lambda image, mask=None: 0))
    >>> inspect.signature(method), method(1, 2)
    (<Signature (image, mask=None)>, (1, 2))
    """
    of_owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)  # which may come before any other kind
    code, default = function.__code__, function.__defaults__
    twin = FunctionType(code, function.__globals__, function.__name__, default, function.__closure__)
    twin.__kwdefaults__, twin.__doc__, twin.__module__ = function.__kwdefaults__, function.__doc__, function.__module__
    twin.__signature__ = inspect.Signature([of_owner, *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    return MethodType(twin, owner)
