"""A command takes a dataclass of options as one parameter; the command line shows an option for each of its fields."""

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import Field, field, fields, is_dataclass, replace
from functools import wraps
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

import typer


def expanded(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: a command with an option for each field of its parameters that are dataclasses.

    An option's help is the field's metadata "help". Its default is that of the parameter's default object if there is
    one, else the field's. The first words of the dataclass's docstring are the heading above its options.

    >>> from spear_hf.cli.app import script
    >>> from spear_hf.cli.options import WeightOptions
    >>> from typer.testing import CliRunner
    >>> @expanded()
    ... def show(name: str, weights: WeightOptions) -> None:
    ...     print(name, weights.revision)
    >>> CliRunner().invoke(script(show, ""), ["resnet", "--revision", "v1"]).stdout
    'resnet v1\\n'

    Args:
        without: fields that get no option; they keep their default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, Any] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            kind = hints[name]
            if is_dataclass(kind) and isinstance(kind, type):
                groups[name] = kind() if parameter.default is parameter.empty else parameter.default
                parameters += _options_of(groups[name], without)
            else:
                parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def call(**values: Any) -> None:
            for name, given in groups.items():
                chosen = {field.name: values.pop(field.name) for field in fields(given) if field.name not in without}
                values[name] = replace(given, **chosen)
            command(**values)

        call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def about(text: str, default: Any) -> Any:
    """A dataclass field with a default and a help text.

    >>> about("Images in a batch.", 64).default
    64
    """
    return field(default=default, metadata={"help": text})


def _options_of(given: Any, without: Collection[str]) -> list[inspect.Parameter]:
    """The options of a dataclass in the order of its fields, with the values of `given` as defaults."""
    hints, heading = get_type_hints(type(given)), re.split(r"[.;:]", (type(given).__doc__ or "Options").strip())[0]
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(given, field.name),
            annotation=Annotated[
                _type_of_word(hints[field.name]),
                typer.Option(*_flag(field), help=field.metadata.get("help", ""), rich_help_panel=heading),
            ],
        )
        for field in fields(given)
        if field.name not in without
    ]


def _flag(field: Field[Any]) -> tuple[str, ...]:
    """The option's name for a field that is False by default, so that it gets no --no-... beside it."""
    return (f"--{field.name.replace('_', '-')}",) if field.default is False else ()


def _type_of_word(kind: Any) -> Any:
    """The type of the option: a field of several types takes the word as it is, and its dataclass parses it."""
    several = isinstance(kind, UnionType) and len([part for part in get_args(kind) if part is not type(None)]) > 1
    return str if several else kind
