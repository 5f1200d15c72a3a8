"""spear-hf corrupt: a corrupted copy of a dataset, or a sheet to look at."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spear_hf.cli.app import AsJson
from spear_hf.cli.output import print_json


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
    as_json: AsJson = False,
) -> None:
    """Write a corrupted copy of a dataset, or a contact sheet of its first image.

    Example: spear-hf corrupt photos.parquet photos-c --corruptions fog,snow
    """
    from spear_hf.data.contact_sheet import contact_sheet
    from spear_hf.data.export import write_corrupted
    from spear_hf.data.stream import load_stream

    if sheet:
        stream = load_stream(source, corruptions="clean", preset=preset, batch_size=1, seed=seed, limit=1)
        image = next(iter(stream))["pixel_values"][0].numpy()
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
    if as_json:
        print_json({"output": str(output), "stream": stream.describe()})
    else:
        print(output)
