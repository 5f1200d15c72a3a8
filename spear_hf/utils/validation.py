"""Checks of a dataclass of numbers that a user chooses, and reading one from a dictionary or JSON."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from spear_hf.errors import ConfigError

T = TypeVar("T")


def check_range(owner: Any, name: str, low: float, high: float) -> None:
    """Raise ConfigError unless the field is a finite number in [low, high]."""
    value = getattr(owner, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high:
        allowed = f"a number in [{low:g}, {high:g}]" if math.isfinite(high) else f"a finite number of at least {low:g}"
        raise ConfigError(
            f"{name}={value!r} is not allowed; {name} is {allowed}; the default is {_default(owner, name)}"
        )


def check_count(owner: Any, name: str, least: int = 1, most: float = math.inf) -> None:
    """Raise ConfigError unless the field is a whole number of at least `least` and at most `most`."""
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"of at least {least}" if math.isinf(most) else f"from {least} to {most:g}"
        raise ConfigError(
            f"{name}={value!r} is not allowed; {name} is a whole number {allowed}; "
            f"the default is {_default(owner, name)}"
        )


def _default(owner: Any, name: str) -> Any:
    return next(f.default for f in fields(owner) if f.name == name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The way out for a name that does not exist: "did you mean tau?", or all there are."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def from_mapping(kind: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass of these fields; an unknown key raises ConfigError and names the nearest one."""
    known = [f.name for f in fields(kind)]  # pyright: ignore[reportArgumentType]
    for key in data:
        if key not in known:
            raise ConfigError(f"{kind.__name__} has no field {key!r}; {nearest(key, known)}")
    return kind(**data)


def json_object(kind: type[Any], text: str) -> dict[str, Any]:
    """The object in a JSON text that is to become `kind`; ConfigError where there is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also where a number has too many digits
        raise ConfigError(f"not JSON ({error}); {kind.__name__}.to_json() shows the form") from error
    if not isinstance(data, dict):
        raise ConfigError(f"a JSON {type(data).__name__} is not a {kind.__name__}; an object with its fields is")
    return data


def stable_json(data: Mapping[str, Any]) -> str:
    """The same values always give the same text: sorted keys, two spaces, a final newline."""
    return json.dumps(data, indent=2, sort_keys=True) + "\n"
