"""spear-hf compare: several methods at several batch sizes on one stream."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.app import INTERRUPTED, AsJson, Labelled, ModelName
from spear_hf.cli.images import Images, Weights
from spear_hf.cli.options import expanded
from spear_hf.cli.output import print_json, print_table

if TYPE_CHECKING:
    from spear_hf.evaluation.comparison import Comparison
    from spear_hf.evaluation.method_spec import MethodSpec


@expanded
def compare(
    model: ModelName,
    dataset: Labelled,
    weights: Weights,
    images: Images,
    methods: Annotated[
        str, typer.Option(help='"all", or names with commas; spear is SPeaR, spear_stream remembers the stream.')
    ] = "source,bn_adapt,tent,spear",
    settings: Annotated[Path | None, typer.Option(help="A JSON file of hyper-parameters by method.")] = None,
    published: Annotated[
        str | None, typer.Option(help="Hyper-parameters as published for cifar10, cifar100, imagenet or imagenet_vit.")
    ] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Several, with commas, in place of --batch-size.")] = None,
    source_images: Annotated[int, typer.Option(help="Clean images for methods that need some (EATA).", min=1)] = 512,
    output: Annotated[Path, typer.Option(help="The folder for finished cells, comparison.json and figure.png.")] = Path(
        "runs/compare"
    ),
    figure: Annotated[bool, typer.Option("--figure", help="Draw error against learned numbers.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget finished cells and begin anew.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same images, each on a copy of the model: errors, calibration, time and memory.

    A finished method is kept: after Ctrl-C the same command goes on with the next one.

    Example: spear-hf compare microsoft/resnet-50 photos.parquet --methods all
    """
    from spear_hf.evaluation.plots.comparison import plot_parameters
    from spear_hf.utils.launch import start_accelerator

    sizes = [images.batch_size] if batch_sizes is None else _sizes(batch_sizes)
    contenders = _contenders(methods, settings, published)
    accelerator = start_accelerator(cpu=cpu)
    if fresh and accelerator.is_main_process:
        shutil.rmtree(output / "cells", ignore_errors=True)
    base = weights.load(model).to(accelerator.device)
    clean = (
        _clean(images.clean(source_images), dataset, base) if any(c.needs_source for c in contenders.values()) else {}
    )
    try:
        comparison = _compared(base, dataset, images, contenders, sizes, clean, output / "cells", accelerator)
    except KeyboardInterrupt as error:
        print(f"\ninterrupted; what is finished is kept in {output}: the same command goes on", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error
    if not accelerator.is_main_process:
        return
    title = f"{model}, {images.protocol}"
    saved = [comparison.to_json(output / "comparison.json")]
    saved += [plot_parameters(comparison, output / "figure.png", title)] if figure else []
    if as_json:
        print_json(comparison.to_dict() | {"output": str(output)})
        return
    for table in (comparison.errors(title), *(comparison.costs(size, title) for size in comparison.batch_sizes)):
        print_table(table)
    for line in comparison.refusal_lines():
        print(line)
    print("saved " + ", ".join(map(str, saved)))


def _compared(
    base: Any,
    dataset: str,
    images: Images,
    contenders: "dict[str, MethodSpec]",
    sizes: list[int],
    clean: dict[str, Any],
    cells: Path,
    accelerator: Any,
) -> "Comparison":
    from spear_hf.evaluation.compare import compare as compare_methods

    return compare_methods(
        base,
        lambda size: replace(images, batch_size=size).stream(dataset, base),
        contenders,
        batch_sizes=sizes,
        folder=cells,
        resources=clean,
        accelerator=accelerator,
        seed=images.seed,
    )


def _contenders(methods: str, settings: Path | None, published: str | None) -> "dict[str, MethodSpec]":
    """The methods by label, with the hyper-parameters of the file before the published ones before the defaults."""
    from spear_hf.evaluation.method_spec import chosen_settings, method_specs

    return method_specs(methods, chosen_settings(published, settings))


def _sizes(text: str) -> list[int]:
    """Batch sizes: "4,16" -> [4, 16]."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"{text!r} is not allowed; give whole numbers with commas, such as 4,16,256")
    return [int(word) for word in words]


def _clean(images: Images, dataset: str, base: Any) -> dict[str, Any]:
    """Clean images, for methods that want some of the source's."""
    import torch

    return {"source_images": torch.cat([batch["pixel_values"] for batch in images.stream(dataset, base)])}
