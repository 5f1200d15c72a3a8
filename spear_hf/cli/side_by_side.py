"""spear-hf compare: several methods at several batch sizes on one stream."""

import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.app import AsJson, Labelled, ModelName, numbers, print_json, print_table
from spear_hf.cli.expand import about, expanded
from spear_hf.cli.image_options import ImageOptions
from spear_hf.cli.options import RunOptions, WeightOptions
from spear_hf.cli.refusals import INTERRUPTED
from spear_hf.errors import ConfigError

if TYPE_CHECKING:
    from spear_hf.evaluation.comparison import Comparison

RUN = RunOptions(output=Path("runs/compare"))


@dataclass
class ComparisonOptions:
    """Methods and their hyper-parameters.

    >>> ComparisonOptions(batch_sizes="4,16").sizes(ImageOptions())
    [4, 16]
    """

    methods: str = about(
        'Names with commas, or "all"; spear is SPeaR, spear_paper is SpearConfig.paper(), and labels of '
        "--settings are allowed.",
        "source,bn_adapt,tent,spear",
    )
    settings: Path | None = about("A JSON file of hyper-parameters by label.", None)
    config: Path | None = about("A JSON file of `spear-hf calibrate`, or a SpearConfig, for the label spear.", None)
    published: str | None = about(
        "Take published hyper-parameters where --settings has none: cifar10, cifar100, imagenet, imagenet_gn or "
        "imagenet_vit.",
        None,
    )
    batch_sizes: str | None = about("Several batch sizes with commas; replaces --batch-size.", None)
    source_dataset: str | None = about("Clean images for methods that need some; default: the dataset itself.", None)
    source_images: int = about("Number of clean images for methods that need some (EATA).", 512)
    fresh: bool = about("Delete the finished methods in the folder and start again.", False)
    cache: Path | None = about("A folder that keeps corrupted images, so that each image is corrupted once.", None)

    def sizes(self, images: ImageOptions) -> list[int]:
        """The batch sizes; typer.BadParameter for another text than numbers with commas."""
        return [images.batch_size] if self.batch_sizes is None else numbers(self.batch_sizes)

    def compare(
        self, model: str, dataset: str, weights: WeightOptions, running: RunOptions, images: ImageOptions
    ) -> "Comparison | None":
        """The comparison, also saved in the run's folder; None on processes other than the main one.

        Finished cells (a method at a batch size) are kept in the folder, so the same call continues after an
        interruption.

        Raises:
            SpearError: an unknown method or hyper-parameter, or a model or images that cannot be loaded.
            typer.Exit: 130, after Ctrl-C.
        """
        import torch

        from spear_hf.data.cached import cached
        from spear_hf.data.processor import load_processor
        from spear_hf.evaluation.calibration.calibration import check_config_fits, read_config
        from spear_hf.evaluation.compare import compare
        from spear_hf.evaluation.method_spec import chosen_settings, method_specs

        sizes = self.sizes(images)
        settings = chosen_settings(self.published, self.settings)
        if self.config is not None:
            settings["spear"] = read_config(self.config)[0].to_dict() | settings.get("spear", {})
        methods = method_specs(self.methods, settings)
        if self.config is not None and "spear" not in methods:
            raise ConfigError(f"config={str(self.config)!r} is for spear alone; add spear to --methods")
        accelerator = running.accelerator()
        cells = running.output / "cells"
        if self.fresh and accelerator.is_main_process:
            shutil.rmtree(cells, ignore_errors=True)
        base = weights.load(model).to(accelerator.device)
        if self.config is not None:
            check_config_fits(self.config, base, *sizes)

        def stream(size: int) -> Any:
            made = replace(images, batch_size=size).stream(dataset, base)
            return made if self.cache is None else cached(made, self.cache)

        processor = load_processor(base)
        resources: dict[str, Any] = {"mean": processor.mean, "std": processor.std}
        if any(method.needs_source for method in methods.values()):
            clean = images.clean(self.source_images).stream(self.source_dataset or dataset, base)
            resources["source_images"] = torch.cat([batch["pixel_values"] for batch in clean])
        try:
            comparison = compare(
                base,
                stream,
                methods,
                batch_sizes=sizes,
                folder=cells,
                resources=resources,
                accelerator=accelerator,
                seed=images.seed,
            )
        except KeyboardInterrupt as error:
            message = f"\ninterrupted; finished methods are kept in {running.output}: the same command continues"
            print(message, file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error
        if not accelerator.is_main_process:
            return None
        comparison.to_json(running.output / "comparison.json")
        return comparison


@expanded(without=("log_with",))
def compare(
    model: ModelName,
    dataset: Labelled,
    comparing: ComparisonOptions,
    weights: WeightOptions,
    images: ImageOptions,
    running: RunOptions = RUN,
    figure: Annotated[bool, typer.Option("--figure", help="Draw error against the number of parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same images, with labels.

    The tables show errors, calibration, time and memory.

    Each method runs on its own copy of the model. Finished methods are kept in the output folder: after Ctrl-C the same
    command continues with the next one.

    Example: spear-hf compare microsoft/resnet-50 photos.parquet --methods all
    """
    from spear_hf.evaluation.plots import plot_parameters

    comparison = comparing.compare(model, dataset, weights, running, images)
    if comparison is None:
        return
    title = f"{model}, {images.protocol}"
    saved = [running.output / "comparison.json"]
    saved += [plot_parameters(comparison, running.output / "figure.png", title)] if figure else []
    if as_json:
        print_json(comparison.to_dict() | {"output": str(running.output)})
        return
    for table in (comparison.errors(title), *(comparison.costs(size, title) for size in comparison.batch_sizes)):
        print_table(table)
    for line in comparison.refusal_lines():
        print(line)
    print("saved " + ", ".join(map(str, saved)))
