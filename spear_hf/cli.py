"""The spear-hf command: a thin layer over the functions of the package."""

import json
import sys
from typing import Annotated, Literal

import typer

from spear_hf.errors import SpearError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Test-time adaptation for frozen image classifiers.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback()
def spear_hf() -> None:
    """Test-time adaptation for frozen image classifiers."""


@app.command()
def boundaries(
    model: Annotated[str, typer.Argument(help="A model folder, a Hub id or a timm name.")],
    num_groups: Annotated[
        int | None, typer.Option(help="Groups of transformer blocks: 2, 3, 4, 6, 12; default 4.")
    ] = None,
    stem: Annotated[
        Literal["auto", "patch_embed", "feature_info"], typer.Option(help="What z_0 is; auto is what enters block one.")
    ] = "auto",
    pretrained: Annotated[bool, typer.Option(help="Load the weights; without, a timm name needs no download.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where RSPs can sit in a model, and where "auto" puts them.

    Example: spear-hf boundaries resnet50
    """
    from spear_hf.base import load_base_model
    from spear_hf.boundaries import find_boundaries, select_boundaries

    base = load_base_model(model, pretrained=pretrained)
    found = find_boundaries(base, num_groups, stem=stem)
    chosen = {b.key for b in select_boundaries(found, "auto")}
    if as_json:
        rows = [b.to_dict() | {"parameters": b.num_parameters, "auto": b.key in chosen} for b in found]
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{type(base).__name__}: {len(found)} boundaries")
    for column in ("depth", "name", "module", "where", "channels", "axis", "parameters", "auto"):
        table.add_column(column, justify="right" if column in ("depth", "channels", "axis", "parameters") else "left")
    for b in found:
        numbers = (str(b.channels), str(b.channel_axis), f"{b.num_parameters:,}")
        table.add_row(str(b.depth), b.name, b.module, b.where, *numbers, "yes" if b.key in chosen else "")
    Console().print(table)


def main() -> None:
    """The console script: an error of this package is one line on stderr and exit code 2."""
    try:
        app()
    except SpearError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
