"""The page of the command line, from the commands' own help and the examples' own first lines."""

import ast
import re
from pathlib import Path
from typing import Any

import click
import typer

from spear_hf.cli import app

HEAD = """# Command line

--8<-- "README.md:commands"

What follows is what each command says under `--help`.
"""


def command_page(examples: Path) -> str:
    """Markdown of every command with its options, and of every example."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD, *_help(group, "spear-hf")]
    for name, command in group.commands.items():
        parts += [f"## spear-hf {name}", *_help(command, f"spear-hf {name}")]
    parts += ["## Examples", *_examples(examples)]
    return "\n\n".join(parts)


def _help(command: Any, name: str) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    return [f"```text\n{usage}\n```", *map(_paragraph, command.help.split("\n\n")), *_options(command, context)]


def _paragraph(text: str) -> str:
    """A paragraph of help: an example and an indented one are commands, which keep their lines."""
    if text.startswith("\b\n"):
        first, *lines = text.removeprefix("\b\n").splitlines()
        is_title = first.rstrip().endswith(":")
        block = "\n".join(line.strip() for line in (lines if is_title else [first, *lines]))
        return (f"{first.strip()}\n\n" if is_title else "") + f"```bash\n{block}\n```"
    if text.startswith("Example: "):
        return f"Example:\n\n```bash\n{text.removeprefix('Example: ')}\n```"
    return _escaped(text)


def _options(command: Any, context: click.Context) -> list[str]:
    """A table for each group of options."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            is_argument = parameter.param_type_name == "argument"
            heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            groups.setdefault(heading, []).append(record)
    return [
        f"**{heading}**\n\n| | |\n|---|---|\n" + "\n".join(_row(*record) for record in records)
        for heading, records in groups.items()
    ]


def _row(flags: str, text: str) -> str:
    return f"| `{flags.replace('|', ' or ')}` | {_escaped(' '.join(text.split()))} |"


def _examples(folder: Path) -> list[str]:
    """The docstring of each example that is a program: its sentence, and its commands."""
    parts = []
    for path in sorted(folder.glob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if commands := re.search(r"(?:^    .*\n?)+", doc, re.M):
            block = "\n".join(line[4:] for line in commands.group().splitlines())
            sentence = " ".join(doc.split("\n\n")[0].split())
            parts.append(f"### examples/{path.name}\n\n{_escaped(sentence)}\n\n```bash\n{block}\n```")
    return parts


def _escaped(text: str) -> str:
    """Text as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)
