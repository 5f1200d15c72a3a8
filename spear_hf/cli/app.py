"""The application that the commands join, and how a command helps and prints."""

import inspect
import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import spear_hf
from spear_hf.cli.refusals import errors_as_exit_codes

MODEL_HELP = "A model folder, a Hub id, a timm or torchvision name, or your own package.module:factory."
DATASET_HELP = "A folder of images, a file (parquet, csv, a list of paths), one image, or a Hub dataset."

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Images = Annotated[str, typer.Argument(metavar="IMAGES", help=DATASET_HELP)]
Labelled = Annotated[str, typer.Argument(metavar="IMAGES", help=f"{DATASET_HELP[:-1]}, with labels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Options(TyperCommand):
    """A command whose help shows every option whole, under the heading of its group, at any width.

    >>> script(lambda: None, "Do nothing.").registered_commands[0].cls.__bases__[0].__name__
    'Options'
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, each group under its heading."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)


class Commands(TyperGroup):
    """A group of commands whose errors become exit codes.

    >>> typer.Typer(cls=Commands).info.cls.__name__
    'Commands'
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with errors_as_exit_codes(ctx):
            return super().invoke(ctx)


class ScriptCommand(Options):
    """The only command of a script; its errors become exit codes.

    >>> script(lambda: None, "Do nothing.").registered_commands[0].cls.__name__
    'ScriptCommand'
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with errors_as_exit_codes(ctx):
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
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
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


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


HELP = """
Test-time adaptation for frozen image classifiers.

A stream of unlabelled images comes in; every batch is answered first and then learned from. The model stays frozen:
SPeaR learns a scale and a shift for each channel at a few of its stage boundaries, and what it learned is saved as an
adapter of a few kilobytes.

  Start here, with a model and a folder of images:
  spear-hf adapt MODEL photos/        answers in runs/adapt/predictions.csv
  spear-hf eval MODEL photos/ --adapter ADAPTER      nothing is learned

  Look closer:
  spear-hf boundaries resnet50                where a model can be steered
  spear-hf corrupt photos/ sheet.png --sheet  what the corruptions look like
  spear-hf compare MODEL photos/              beside other methods, with labels

Every command has --help with an example. Settings: SPEAR_HF_VERBOSITY=info tells more; HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE are those of the Hub.
"""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"spear-hf {spear_hf.__version__}")
        raise typer.Exit


@app.callback(help=help_of(HELP))
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `spear-hf` itself."""
