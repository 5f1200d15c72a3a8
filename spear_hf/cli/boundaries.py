"""spear-hf boundaries: where RSPs can sit in a model."""

from typing import Annotated, Literal

import typer

from spear_hf.cli.app import AsJson, ModelName
from spear_hf.cli.output import print_json, print_table


def boundaries(
    model: ModelName,
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
    from rich.table import Table

    from spear_hf.backbones.load import load_base_model
    from spear_hf.boundaries import search_boundaries, select_boundaries

    base = load_base_model(model, pretrained=pretrained)
    findings = search_boundaries(base, num_groups, stem=stem)
    found = findings.boundaries
    shapes = [list(shape[1:]) for shape in findings.shapes] or [[]] * len(found)  # a user's rule shows no shapes
    chosen = {b.key for b in select_boundaries(found, "auto")}
    if as_json:
        print_json(
            [
                b.to_dict() | {"shape": shape, "parameters": b.num_parameters, "auto": b.key in chosen}
                for b, shape in zip(found, shapes, strict=True)
            ]
        )
        return
    table = Table(title=f"{type(base).__name__}: {len(found)} boundaries, source {findings.source}")
    for column in ("depth", "name", "module", "where", "shape", "C", "axis", "params", "auto"):
        right = column in ("depth", "C", "axis", "params")
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "shape")
    for b, shape in zip(found, shapes, strict=True):
        numbers = ("x".join(map(str, shape)), str(b.channels), str(b.channel_axis), f"{b.num_parameters:,}")
        table.add_row(str(b.depth), b.name, b.module, b.where, *numbers, "yes" if b.key in chosen else "")
    print_table(table)
    for note in findings.notes:
        print(f"note: {note}")
