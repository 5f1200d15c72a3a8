"""Checks of a dataclass of numbers that a user chooses, how to read one from a dictionary or JSON, and error texts."""

import difflib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from spear_hf.errors import ConfigError

T = TypeVar("T")


MOST = 1_000_000_000  # no setting counts further; a number beyond it is a slip


def check_range(owner: Any, name: str, low: float, high: float, *, below: bool = False) -> None:
    """Raise ConfigError unless the field is a finite number in [low, high], or in [low, high) with `below`.

    >>> from spear_hf import SpearConfig
    >>> from spear_hf.utils.validation import check_range
    >>> check_range(SpearConfig(), "alpha", 0, 1)
    """
    value, most = getattr(owner, name), min(high, sys.float_info.max)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= most or (below and value == high):
        interval = f"[{low:g}, {high:g}{')' if below else ']'}"
        allowed = f"a number in {interval}" if math.isfinite(high) else f"a finite number of at least {low:g}"
        raise ConfigError(
            f"{name}={shown(value)} is not allowed; {name} is {allowed}; the default is {_default(owner, name)}"
        )


def check_count(owner: Any, name: str, least: int = 1, most: int = MOST) -> None:
    """Raise ConfigError unless the field is a whole number of at least `least` and at most `most`.

    >>> from spear_hf import SpearConfig
    >>> from spear_hf.utils.validation import check_count
    >>> check_count(SpearConfig(), "steps", least=1, most=4)
    """
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"of at least {least}" if most == MOST else f"from {least} to {most:,}"
        limit = f", at most {MOST:,}" if isinstance(value, int) and value > most == MOST else ""
        raise ConfigError(
            f"{name}={shown(value)} is not allowed; {name} is a whole number {allowed}{limit}; "
            f"the default is {_default(owner, name)}"
        )


def check_flag(owner: Any, name: str) -> None:
    """Raise ConfigError unless the field is True or False; a text such as "no" would count as true.

    >>> from spear_hf import SpearConfig
    >>> from spear_hf.utils.validation import check_flag
    >>> check_flag(SpearConfig(), "hard_gate")
    """
    value = getattr(owner, name)
    if not isinstance(value, bool):
        raise ConfigError(
            f"{name}={shown(value)} is not allowed; {name} is True or False; the default is {_default(owner, name)}"
        )


def shown(value: object) -> str:
    """A value as an error shows it: its repr, cut after 80 characters.

    >>> from spear_hf.utils.validation import shown
    >>> shown("no"), shown(10**9999)
    ("'no'", 'a number of more than 4,000 digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print such a number
        return "a number of more than 4,000 digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _default(owner: Any, name: str) -> Any:
    return next(f.default for f in fields(owner) if f.name == name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the most similar known name, or all known names.

    >>> from spear_hf.utils.validation import nearest
    >>> nearest("tua", ["alpha", "tau"])
    'did you mean tau?'
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if there is no message.

    >>> from spear_hf.utils.validation import first_line
    >>> first_line(ValueError("not a number\\nwhile reading row 3"))
    'not a number'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_of(items: Sequence[object], most: int, joint: str = " and ") -> str:
    """The first items with commas, and how many more there are.

    >>> from spear_hf.utils.validation import first_of
    >>> first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    shown = ", ".join(str(item) for item in items[:most])
    return shown + (f"{joint}{len(items) - most} more" if len(items) > most else "")


def from_mapping(kind: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass `kind` with these fields.

    >>> from spear_hf import SpearConfig
    >>> from spear_hf.utils.validation import from_mapping
    >>> from_mapping(SpearConfig, {"tau": 0.1}).tau
    0.1

    Raises:
        ConfigError: an unknown field; the message names the most similar one.
    """
    known = [f.name for f in fields(kind)]  # pyright: ignore[reportArgumentType]
    for key in data:
        if key not in known:
            raise ConfigError(f"{kind.__name__} has no field {key!r}; {nearest(key, known)}")
    return kind(**data)


def json_object(kind: type[Any], text: str) -> dict[str, Any]:
    """The JSON object in `text`; `kind` is the class that an error names.

    >>> from spear_hf import SpearConfig
    >>> from spear_hf.utils.validation import json_object
    >>> json_object(SpearConfig, '{"tau": 0.1}')
    {'tau': 0.1}

    Raises:
        ConfigError: text that is not JSON, or a JSON value that is not an object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # Python also raises ValueError for a number of too many digits
        raise ConfigError(f"not JSON ({error}); {kind.__name__}.to_json() shows the form") from error
    if not isinstance(data, dict):
        raise ConfigError(f"a JSON {type(data).__name__} is not a {kind.__name__}; give an object with its fields")
    return data


def stable_json(data: Mapping[str, Any]) -> str:
    """JSON text that is the same for equal values: sorted keys, two spaces, a final newline.

    >>> from spear_hf.utils.validation import stable_json
    >>> stable_json({"tau": 0.1, "alpha": 0.5}) == stable_json({"alpha": 0.5, "tau": 0.1})
    True
    """
    return json.dumps(data, indent=2, sort_keys=True) + "\n"
