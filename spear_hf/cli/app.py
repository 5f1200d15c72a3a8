"""The application that the commands join, its exit codes, and how a command prints.

Exit codes: 0 done; 1 an unexpected error, with its traceback, or a failing server; 2 an input that is refused, with one
line on stderr; 130 interrupted.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from spear_hf.errors import SpearError

REFUSED, FAILED, INTERRUPTED = 2, 1, 130

MODEL_HELP = "A model folder, a Hub id, a timm or torchvision name, or your own package.module:factory."
DATASET_HELP = "A parquet file, an image folder or a Hub dataset, with labels."

ModelName = Annotated[str, typer.Argument(help=MODEL_HELP)]
Labelled = Annotated[str, typer.Argument(help=DATASET_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """An error that the user can act on ends in one line on stderr instead of a traceback."""
    try:
        yield
    except SpearError as error:
        raise _exit(error, REFUSED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        from huggingface_hub import errors as hub  # imported here, because --help must not load huggingface_hub

        if isinstance(error, (hub.HFValidationError, hub.EntryNotFoundError, hub.OfflineModeIsEnabled)):
            raise _exit(error, REFUSED) from error
        if isinstance(error, hub.HfHubHTTPError):
            status = None if error.response is None else error.response.status_code
            raise _exit(error, REFUSED if status is not None and status < 500 else FAILED) from error
        raise


def _exit(error: Exception, code: int) -> typer.Exit:
    """The exit with this code, after the error is printed in one line."""
    print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    return typer.Exit(code)


class Commands(TyperGroup):
    """A group of commands whose errors become exit codes.

    >>> typer.Typer(cls=Commands).info.cls.__name__
    'Commands'
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _errors_as_exit_codes():
            return super().invoke(ctx)


class ScriptCommand(TyperCommand):
    """The only command of a script; its errors become exit codes.

    >>> script(lambda: None, "Do nothing.").registered_commands[0].cls.__name__
    'ScriptCommand'
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _errors_as_exit_codes():
            return super().invoke(ctx)


def script(command: Callable[..., None], doc: str | None) -> typer.Typer:
    """A Typer application of one command, for a file that is run as a script.

    >>> from typer.testing import CliRunner
    >>> app = script(lambda name: print("hello", name), "Greet someone.")
    >>> CliRunner().invoke(app, ["you"]).stdout
    'hello you\\n'

    Args:
        command: its parameters become the options.
        doc: the help text, usually the script's `__doc__`. Its indented lines keep their line breaks.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=ScriptCommand, help=help_of(doc))(command)
    return app


def help_of(doc: str | None) -> str:
    """A docstring as the help text of a command: an indented paragraph keeps its lines, another becomes one line.

    >>> help_of("Do this\\nand that.")
    'Do this and that.'
    """
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(f"\b\n{text}" if text.startswith("  ") else " ".join(text.split()) for text in paragraphs)


def numbers(text: str) -> list[int]:
    """Whole numbers above 0 from a text with commas.

    >>> numbers("4, 16")
    [4, 16]

    Raises:
        typer.BadParameter: another text.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d+", word) and int(word) > 0 for word in words):
        raise typer.BadParameter(f"{text!r} is not allowed; give whole numbers with commas, such as 4,16,256")
    return [int(word) for word in words]


def print_json(data: Any) -> None:
    """Print one JSON document on stdout.

    >>> print_json([1])
    [
      1
    ]
    """
    print(json.dumps(data, indent=2))


def print_table(table: Any) -> None:
    """Print a rich table on stdout.

    >>> print_table("or another object that rich can print")
    or another object that rich can print
    """
    from rich.console import Console

    Console().print(table)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


HELP = """Test-time adaptation for frozen image classifiers.

A stream of unlabeled images comes in; every batch is predicted first and then learned from. The model stays frozen:
SPeaR learns a scale and a shift for each channel at a few of its stage boundaries, and what it learned is saved as an
adapter of a few kilobytes.

  Start here:
  spear-hf boundaries resnet50                        where a model can be steered
  spear-hf corrupt photos.parquet sheet.png --sheet   what the corruptions look like
  spear-hf adapt MODEL photos.parquet --limit 256     adapt, and compare with the frozen model
  spear-hf report runs/adapt                          the result as a page with figures

Every command has --help with an example.
"""


@app.callback(help=help_of(HELP))
def _root() -> None:
    """The options of `spear-hf` itself: none but --help."""
