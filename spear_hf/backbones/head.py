"""How logits come out of a base that is no classifier by itself, in a form that can be saved; it is never code."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

Step = int | str
UNNAMED = "<lambda>"
MOST_LABELS = 100_000
MOST_TEMPLATES = 1_000


@dataclass(frozen=True)
class Head:
    """Where logits come from; all empty for a classifier.

    Args:
        labels: the classes of a model of images and texts, in the order of its logits.
        templates: the prompts that a label is put into, at "{}".
        path: the keys, attributes and places that lead to the logits in what the base returns.
        function: the name of a function that takes the logits from it, "package.module:name", or UNNAMED; the name is
            only compared, and nothing is imported by it.

    >>> Head(path=("heads", 0)).to_dict()
    {'path': ['heads', 0]}
    """

    labels: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    path: tuple[Step, ...] = ()
    function: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, as JSON-ready values."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items() if v not in ((), None)}

    @classmethod
    def from_dict(cls, data: Any) -> "Head":
        """The Head that `to_dict` wrote.

        Raises:
            ValueError: an entry of another name or type.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or data.keys() - known:
            raise ValueError(f"head is {str(data)[:100]}, with {sorted(known)} allowed")
        labels, templates = _texts(data, "labels", MOST_LABELS), _texts(data, "templates", MOST_TEMPLATES)
        if len(labels) == 1 or any(template.count("{}") != 1 for template in templates):
            raise ValueError(f"head has one label, or a template without a place for it: {labels[:1]}, {templates[:1]}")
        path, function = data.get("path", []), data.get("function")
        if not isinstance(path, list) or len(path) > 16 or not all(type(step) in (int, str) for step in path):
            raise ValueError(f"head has path={path!r}")
        if function is not None and not is_line(function):
            raise ValueError(f"head has function={str(function)[:50]!r}")
        return cls(labels, templates, tuple(path), function)

    def difference(self, other: "Head") -> str | None:
        """How `other` differs, in words; None where both give the same logits, as far as names can tell.

        >>> Head(labels=("cat", "dog")).difference(Head(labels=("cat", "emu")))
        "other labels ('emu' at 1, expected 'dog')"
        """
        for name in ("labels", "templates", "path"):
            if apart := _apart(getattr(self, name), getattr(other, name)):
                return f"other {name} ({apart})"
        names = {self.function, other.function} - {UNNAMED}
        if (self.function is None) is not (other.function is None) or len(names) > 1:
            return f"logits from {other.function or 'no function'}, expected {self.function or 'no function'}"
        return None


def own_head(model: object) -> Head:
    """The labels and templates of a ZeroShotClassifier; empty for any other model.

    >>> own_head(object())
    Head(labels=(), templates=(), path=(), function=None)
    """
    found = getattr(model, "head", None)
    return found if isinstance(found, Head) else Head()


def _apart(expected: Sequence[Step], found: Sequence[Step]) -> str | None:
    if len(expected) != len(found):
        return f"{len(found)}, expected {len(expected)}"
    pairs = zip(found, expected, strict=True)
    return next(
        (f"{mine!r} at {i}, expected {theirs!r}" for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None
    )


def _texts(data: Mapping[str, Any], name: str, most: int) -> tuple[str, ...]:
    found = data.get(name, [])
    if not isinstance(found, list) or len(found) > most or not all(map(is_line, found)):
        raise ValueError(f"head has {name} that are no lines of text")
    return tuple(found)


def is_line(value: object) -> bool:
    """Whether a value is a line of text that a file may hold.

    >>> is_line("cat"), is_line("a\\nb"), is_line(3)
    (True, False, False)
    """
    return isinstance(value, str) and 0 < len(value) <= 1000 and not _UNSHOWN.search(value)


_UNSHOWN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Characters that steer a terminal, turn the direction of the text around them, end a line, or cannot be written."""
