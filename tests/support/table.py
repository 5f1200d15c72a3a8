"""The support matrix: a row is a test, and `docs/support.md` is made of the rows.

A file `tests/support/test_<section>.py` is a section of the page: the first line of its docstring is the heading, the
rest the text under it, and its tests are the rows, in the order of the file:

    @works("`Trainer(model=steered).evaluate()`", "the base's loss, metrics and labels", on="a random ResNet")
    def test_trainer_evaluates() -> None: ...

    @refused("a head of several labels", InputError, "problem_type='multi_label_classification'")
    def test_several_labels() -> None: ...  # what is inside must raise that error with those words

`python -m tests.support` writes the page again.
"""

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "support.md"
SECTIONS = ("transformers", "zero_shot", "heads", "several_inputs", "compile", "export", "precision", "gpu")
"""In the order of the page; a section without a file is left out, and one that is not here comes last."""

TITLE = """# What works with what

Each row is a test of the same name in [tests/support](../tests/support), and this page is made of these tests:
`python -m tests.support`. What is refused is refused with the words that stand here, before anything is learned.
"""


@dataclass(frozen=True)
class Row:
    """A line of the matrix.

    Args:
        use: what a user does, in Markdown.
        outcome: "works", with what that means; "refused", with the error and its words; or "not tried here".
        test: the function that shows it.
    """

    use: str
    outcome: str
    test: Callable[..., Any]


def works(use: str, what: str = "", *, on: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated test shows that this use works.

    Args:
        use: what a user does, in Markdown.
        what: what a user gets, where "works" says too little.
        on: the model that it was tested on, where that is not the one that users have.
    """
    parts = ["works" + (f": {what}" if what else "")] + ([f"tested on {on}"] if on else [])

    def register(test: Callable[..., None]) -> Callable[..., None]:
        test.support_row = Row(use, "; ".join(parts), test)  # type: ignore[attr-defined]
        return test

    return register


def refused(use: str, error: type[Exception], words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated test must raise this error with these words, as the page says.

    Args:
        use: what a user does, in Markdown.
        error: the class of the error.
        words: a part of its message, as it stands there.
    """

    def register(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def must_raise(*args: Any, **kwargs: Any) -> None:
            with pytest.raises(error, match=re.escape(words)):
                test(*args, **kwargs)

        must_raise.support_row = Row(use, f'refused: `{error.__name__}`, "{words}"', test)  # type: ignore[attr-defined]
        return must_raise

    return register


def untried(use: str, needs: str = "a CUDA device") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated test is skipped where the page is made: it says what has not been shown, and how to show it.

    Args:
        use: what a user does, in Markdown.
        needs: what is not there.
    """

    def register(test: Callable[..., None]) -> Callable[..., None]:
        test.support_row = Row(use, f"not tried here: needs {needs}", test)  # type: ignore[attr-defined]
        return test

    return register


def page() -> str:
    """The text of docs/support.md."""
    names = sorted((path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")), key=_place)
    return "\n".join([TITLE, *filter(None, map(_section, names))])


def _place(name: str) -> tuple[int, str]:
    return SECTIONS.index(name) if name in SECTIONS else len(SECTIONS), name


def _section(name: str) -> str:
    module = importlib.import_module(f"tests.support.test_{name}")
    rows = [row for each in vars(module).values() if isinstance(row := getattr(each, "support_row", None), Row)]
    if not rows:
        return ""
    heading, _, text = (module.__doc__ or name).strip().partition("\n")
    lines = [f"| {_cell(r.use)} | {_cell(r.outcome)} | {r.test.__name__} |" for r in rows]
    table = ["| use | works, or is refused with | test |", "|---|---|---|", *lines]
    return "\n".join([f"## {heading.rstrip('.')}", "", *([text.strip(), ""] if text.strip() else []), *table, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
