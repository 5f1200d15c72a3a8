"""spear-hf boundaries, corrupt and report: look at a model, at corrupted images, and at a finished run."""

import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer

from spear_hf.cli.app import AsJson, ModelName, print_json, print_table
from spear_hf.cli.expand import expanded
from spear_hf.cli.image_options import ImageOptions


def boundaries(
    model: ModelName,
    num_groups: Annotated[
        int | None, typer.Option(help="Groups of transformer blocks: 2, 3, 4, 6, 12; default 4.")
    ] = None,
    stem: Annotated[
        Literal["auto", "patch_embed", "feature_info"],
        typer.Option(help="What z_0 is; auto is the input of the first block."),
    ] = "auto",
    pretrained: Annotated[
        bool, typer.Option(help="Load the weights; a timm name needs no download without them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the stage boundaries of a model, where RSPs can sit.

    Those that "auto" takes are marked.

    Example: spear-hf boundaries resnet50
    """
    from rich.table import Table

    from spear_hf.backbones.factory import build_own, is_factory
    from spear_hf.backbones.load import load_base_model
    from spear_hf.boundaries import search_boundaries, select_boundaries

    base = build_own(model) if is_factory(model) else load_base_model(model, pretrained=pretrained)
    findings = search_boundaries(base, num_groups, stem=stem)
    found = findings.boundaries
    shapes = [list(shape[1:]) for shape in findings.shapes] or [[]] * len(found)  # a user's rule gives no shapes
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
        values = ("x".join(map(str, shape)), str(b.channels), str(b.channel_axis), f"{b.num_parameters:,}")
        table.add_row(str(b.depth), b.name, b.module, b.where, *values, "yes" if b.key in chosen else "")
    print_table(table)
    for note in findings.notes:
        print(f"note: {note}")


ALL = ImageOptions(corruptions="all")


@expanded(
    without=(
        *("severity", "protocol", "batch_size", "num_workers", "streaming", "class_names"),
        *("mean", "std", "image_size"),
    )
)
def corrupt(
    source: Annotated[str, typer.Argument(help="A parquet file, an image folder or a Hub dataset.")],
    output: Annotated[Path, typer.Argument(help="A new folder; with --sheet a PNG file.")],
    images: ImageOptions = ALL,
    severity: Annotated[list[float] | None, typer.Option(help="1 to 5; can be given several times; default 5.")] = None,
    layout: Annotated[Literal["parquet", "npy", "imagefolder"], typer.Option(help="Format of the copy.")] = "parquet",
    sheet: Annotated[
        bool, typer.Option("--sheet", help="Write one image under every corruption and severity instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a corrupted copy of a dataset, or a contact sheet.

    The sheet shows the first image under every corruption.

    Example: spear-hf corrupt photos.parquet photos-c --corruptions fog,snow
    """
    from spear_hf.data.contact_sheet import contact_sheet
    from spear_hf.data.export import write_corrupted
    from spear_hf.data.load_stream import load_stream

    warnings.simplefilter("ignore")  # of an order that misleads a learner: nothing learns here
    preset, seed, split = images.preset, images.seed, images.split
    if sheet:
        stream = load_stream(source, corruptions="clean", preset=preset, batch_size=1, seed=seed, split=split, limit=1)
        image = next(iter(stream))["pixel_values"][0].numpy()
        output.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(image, preset=preset, seed=seed).save(output)
    else:
        stream = load_stream(
            source,
            corruptions=images.corruptions,
            severity=severity or [5.0],
            preset=preset,
            limit=images.limit or None,
            split=split,
            seed=seed,
            shuffle=images.shuffle,
            image_column=images.image_column,
            label_column=None if images.label_column.lower() == "none" else images.label_column,
            skip_broken=images.skip_broken,
        )
        write_corrupted(stream, output, layout=layout)
    if as_json:
        print_json({"output": str(output), "stream": stream.describe()})
    else:
        print(output)


def report(
    run: Annotated[Path, typer.Argument(help="A run folder: report.json, and steps.jsonl for most figures.")],
    output: Annotated[Path | None, typer.Option(help="The page; default: report.html in the folder.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Also write the figures as PNG, to RUN/figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML page, which opens without a network.

    Example: spear-hf report runs/adapt
    """
    from spear_hf.evaluation.html import write_page
    from spear_hf.evaluation.plots import save_figures

    page = write_page(run, output)
    drawn = save_figures(run) if figures else []
    if as_json:
        print_json({"page": str(page), "figures": [str(path) for path in drawn]})
    else:
        print(page)
