"""One option for each field of a dataclass, so that a command takes the dataclass as a single parameter."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

import typer


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with every parameter of a dataclass type replaced by an option for each of its fields.

    An option's help is the field's metadata "help", its default the field's; the dataclass's first words head them.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            parameters += _options_of(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def call(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    """The options of a dataclass, in the order of its fields, under one heading."""
    hints, heading = get_type_hints(kind), re.split(r"[.;]", (kind.__doc__ or kind.__name__).strip())[0]
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=Annotated[
                _simple(hints[field.name]),
                typer.Option(*_flag(field), help=field.metadata.get("help", ""), rich_help_panel=heading),
            ],
        )
        for field in fields(kind)
    ]


def _flag(field: Field[Any]) -> tuple[str, ...]:
    """The option's name where there is nothing to switch off."""
    return (f"--{field.name.replace('_', '-')}",) if field.default is False else ()


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _simple(kind: Any) -> Any:
    """The type that a word on the command line has: a choice between several is left to the dataclass to read."""
    several = isinstance(kind, UnionType) and len([part for part in get_args(kind) if part is not type(None)]) > 1
    return str if several else kind
