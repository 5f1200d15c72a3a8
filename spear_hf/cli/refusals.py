"""What a user reads when something goes wrong: one line, in the words of the command line, and an exit code.

Exit codes: 0 done; 1 an unexpected error, with its traceback, or a failing server or disk; 2 an input that is refused;
130 interrupted.
"""

import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from spear_hf.errors import SpearError

REFUSED, FAILED, INTERRUPTED = 2, 1, 130
NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp")
"""Packages whose errors mean that a server could not be reached."""

_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]*)=('[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^\]]*\]|[^\s,;)]+)?")
RENAMED = {"size": "image_size", "predictions": "predictions"}
"""Parameter of the API -> option, where they differ."""


def in_flags(message: str, options: Collection[str]) -> str:
    """A message with flags in place of Python arguments.

    >>> from spear_hf.cli.refusals import in_flags
    >>> in_flags("tau=2.0 is not allowed; pass label_column=None or skip_broken=True", ["tau", "label_column"])
    '--tau 2.0 is not allowed; pass --label-column none or skip_broken=True'

    Args:
        message: of an error or a warning of the API.
        options: names of the parameters that the command has as options.
    """

    def flag(found: re.Match[str]) -> str:
        name, value = RENAMED.get(found[1], found[1]), found[2] or ""
        if name not in options:
            return found[0]
        word = f"--{name.replace('_', '-')}"
        if value == "True":
            return word
        if value == "False":
            return f"--no{word[1:]}"
        if value in ("", "None"):
            return f"{word} none" if value else word
        return f"{word} {value}"

    return _ARGUMENT.sub(flag, message)


_ENDINGS: list[Callable[[], object]] = []


def at_the_end(function: Callable[[], object]) -> None:
    """Call a function when the command that runs ends, however it ends.

    >>> with errors_as_exit_codes(None):
    ...     at_the_end(lambda: print("unlocked"))
    unlocked
    """
    _ENDINGS.append(function)


@contextmanager
def errors_as_exit_codes(context: Any) -> Iterator[None]:
    """An error that the user can act on ends in one line on stderr instead of a traceback.

    >>> import typer
    >>> try:
    ...     with errors_as_exit_codes(None):
    ...         raise SpearError("no way")
    ... except typer.Exit as exit:
    ...     print(exit.exit_code)
    2

    Args:
        context: of click, which knows the options of the command; None knows none.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say("warning", str(message), context)
            yield
    except (typer.Exit, typer.Abort):
        raise
    except SpearError as error:
        raise _exit(error, REFUSED, context) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        code, hint = _code_of(error)
        if code is None:
            raise
        raise _exit(error, code, context, hint) from error
    finally:
        while _ENDINGS:
            _ENDINGS.pop()()


def _code_of(error: Exception) -> tuple[int | None, str]:
    """The exit code of another library's error, and the way out; None for one that is a bug."""
    from huggingface_hub import errors as hub  # imported here, because --help must not load huggingface_hub

    if isinstance(error, hub.HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        hint = "log in with an account that may do this: hf auth login" if status in (401, 403) else ""
        return (REFUSED if status < 500 else FAILED), hint
    if isinstance(error, hub.LocalTokenNotFoundError):
        return REFUSED, "log in first: hf auth login"
    if isinstance(error, (hub.HFValidationError, hub.EntryNotFoundError, hub.OfflineModeIsEnabled)):
        return REFUSED, ""
    if type(error).__module__.split(".")[0] in NETWORK or isinstance(error, (ConnectionError, hub.HfHubHTTPError)):
        return FAILED, "the server cannot be reached: check the connection"
    if isinstance(error, OSError):
        named = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
        return (REFUSED if isinstance(error, named) else FAILED), ""
    return None, ""


def _exit(error: Exception, code: int, context: Any, hint: str = "") -> typer.Exit:
    """The exit with this code, after the error is printed in one line."""
    _say(type(error).__name__, f"{error}; {hint}" if hint else str(error), context)
    return typer.Exit(code)


def _say(what: str, message: str, context: Any) -> None:
    text = in_flags(" ".join(message.split()), _options(context))
    print(f"{what}: {text}", file=sys.stderr)


def _options(context: Any) -> set[str]:
    """Names of the parameters of the command that runs, and of the group's chosen command."""
    if context is None:
        return set()
    command = context.command
    chosen = getattr(command, "commands", {}).get(context.invoked_subcommand)
    return {str(option.name) for part in (command, chosen) if part is not None for option in part.params}
