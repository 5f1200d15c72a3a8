"""The spear-hf command: a thin layer over the functions of the package."""

import json
import sys
from pathlib import Path
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
    from spear_hf.boundaries import search_boundaries, select_boundaries

    base = load_base_model(model, pretrained=pretrained)
    findings = search_boundaries(base, num_groups, stem=stem)
    found = findings.boundaries
    shapes = [list(shape[1:]) for shape in findings.shapes] or [[]] * len(found)  # a user's rule shows no shapes
    chosen = {b.key for b in select_boundaries(found, "auto")}
    if as_json:
        rows = [
            b.to_dict() | {"shape": shape, "parameters": b.num_parameters, "auto": b.key in chosen}
            for b, shape in zip(found, shapes, strict=True)
        ]
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{type(base).__name__}: {len(found)} boundaries, source {findings.source}")
    for column in ("depth", "name", "module", "where", "shape", "C", "axis", "params", "auto"):
        right = column in ("depth", "C", "axis", "params")
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "shape")
    for b, shape in zip(found, shapes, strict=True):
        numbers = ("x".join(map(str, shape)), str(b.channels), str(b.channel_axis), f"{b.num_parameters:,}")
        table.add_row(str(b.depth), b.name, b.module, b.where, *numbers, "yes" if b.key in chosen else "")
    Console().print(table)
    for note in findings.notes:
        print(f"note: {note}")


@app.command()
def corrupt(
    source: Annotated[str, typer.Argument(help="A parquet file, an image folder or a Hub dataset.")],
    output: Annotated[Path, typer.Argument(help="A new folder; with --sheet a PNG file.")],
    corruptions: Annotated[str, typer.Option(help='"all" (the 15), "extra", a group, or names with commas.')] = "all",
    severity: Annotated[list[float] | None, typer.Option(help="1 to 5; may be given several times; default 5.")] = None,
    layout: Annotated[
        Literal["parquet", "npy", "imagefolder"], typer.Option(help="How the copy is stored.")
    ] = "parquet",
    preset: Annotated[str, typer.Option(help='"imagenet", "cifar", "tiny", or "auto" by the image size.')] = "auto",
    limit: Annotated[int | None, typer.Option(help="Images of each corruption; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of the corruptions and of the sample.")] = 0,
    sheet: Annotated[
        bool, typer.Option(help="Write one image under every corruption and severity, to look at.")
    ] = False,
) -> None:
    """Write a corrupted copy of a dataset, or a contact sheet of its first image.

    Example: spear-hf corrupt photos.parquet photos-c --corruptions fog,snow --severity 3 --severity 5
    """
    from spear_hf.data.contact_sheet import contact_sheet
    from spear_hf.data.export import write_corrupted
    from spear_hf.data.stream import load_stream

    if sheet:
        clean = load_stream(source, corruptions="clean", preset=preset, batch_size=1, seed=seed, limit=1)
        image = next(iter(clean))["pixel_values"][0].numpy()
        output.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(image, preset=preset, seed=seed).save(output)
    else:
        stream = load_stream(
            source,
            corruptions=corruptions,
            severity=severity or [5.0],
            preset=preset,
            limit=limit,
            seed=seed,
            shuffle=limit is not None,
        )
        write_corrupted(stream, output, layout=layout)
    print(output)


def main() -> None:
    """The console script: an error of this package is one line on stderr and exit code 2."""
    try:
        app()
    except SpearError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
