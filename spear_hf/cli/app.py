"""The application that commands join, and its exit codes.

0: done. 1: something unexpected, with its traceback, or a server that did not answer. 2: an input that is refused, in
one line on stderr. 130: interrupted.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spear_hf.errors import SpearError

REFUSED, FAILED, INTERRUPTED = 2, 1, 130

ModelName = Annotated[str, typer.Argument(help="A model folder, a Hub id or a timm name.")]
Labelled = Annotated[str, typer.Argument(help="A parquet file, a folder, or a Hub dataset, with labels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Commands(TyperGroup):
    """A group whose commands end in one line, not in a traceback, where the reader of that line can do something."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become exit codes."""
        try:
            return super().invoke(ctx)
        except SpearError as error:
            raise _ended(error, REFUSED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            from huggingface_hub import errors as hub  # what it calls an error shares no base with ours

            if isinstance(error, (hub.HFValidationError, hub.EntryNotFoundError, hub.OfflineModeIsEnabled)):
                raise _ended(error, REFUSED) from error
            if isinstance(error, hub.HfHubHTTPError):
                answer = None if error.response is None else error.response.status_code
                raise _ended(error, REFUSED if answer is not None and answer < 500 else FAILED) from error
            raise


def _ended(error: Exception, code: int) -> typer.Exit:
    """Say on stderr what the error is, in one line, and give back the exit."""
    print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def spear_hf() -> None:
    """Test-time adaptation for frozen image classifiers."""
