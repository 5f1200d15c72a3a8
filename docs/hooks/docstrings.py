"""An extension of griffe: docstrings as this package writes them, for the pages of the API."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n(?:\1(?=\S).*(?:\n|\Z))*", re.M)
_ENTRY = re.compile(r"^    ((?:[*\w]+,\s+)+[*\w]+): (.*(?:\n     .*)*)", re.M)


class Docstrings(griffe.Extension):
    """Put fences around examples, and give each of several names its own entry."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = separated(fenced(obj.docstring.value))


def fenced(text: str) -> str:
    """A docstring with fences around its examples: the lines from `>>>` to the end of their paragraph."""
    return _EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n", text + "\n")


def separated(text: str) -> str:
    """A docstring in which "a, b: text" under Args are two entries."""
    return _ENTRY.sub(
        lambda found: "\n".join(f"    {name}: {found[2]}" for name in found[1].replace(",", "").split()), text
    )
