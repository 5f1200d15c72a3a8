"""Every method beside SPeaR on the same stream: error, calibration, learned numbers, time and memory.

    python examples/compare_methods.py                                        # embedded ResNet and images, offline
    python examples/compare_methods.py --methods source,tent,spear --batch_sizes 4 16 256 --protocol continual
    python examples/compare_methods.py --model timm/resnet50.tv_in1k --dataset /data/ImageNet-C --limit 5000
    python examples/compare_methods.py --settings tuned.json                  # hyper-parameters, see below

Every cell (a method at a batch size) runs alone on a copy of the same model, over the same images in the same order,
and is kept in the output folder: a run that was stopped goes on with the next cell. Corrupted images are made once and
kept in `--cache`; a folder that holds corrupted images has no clean ones, so name some with `--source_dataset` for the
methods that need them (EATA). `--settings` is a JSON file of hyper-parameters by label, chosen on other images:

    {"tent": {"learning_rate": 0.00025}, "spear": {"tau": 0.1}, "SPeaR, alpha 1": {"method": "spear", "alpha": 1.0}}
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import HfArgumentParser

from spear_hf import SpearError, load_base_model, load_processor, load_stream
from spear_hf.data.cached import cached
from spear_hf.data.processor import load_class_names
from spear_hf.evaluation.compare import compare
from spear_hf.evaluation.method_spec import chosen_settings, method_specs
from spear_hf.evaluation.plots import plot_parameters
from spear_hf.utils.launch import start_accelerator

HERE = Path(__file__).parent
EMBEDDED = {"fashion_mnist": HERE / "fashion_mnist" / "test.parquet"}


def about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class RunArguments:
    """What to compare, and on what."""

    methods: str = about(
        '"all", or with commas names of METHODS, "spear", "spear_paper", "spear_stream" and labels of --settings.',
        "all",
    )
    settings: str | None = about("A JSON file of hyper-parameters by label.", None)
    published: str | None = about(
        "Hyper-parameters as published for cifar10, cifar100, imagenet or imagenet_vit, where --settings has none.",
        None,
    )
    batch_sizes: list[int] = field(default_factory=lambda: [16], metadata={"help": "Images in a batch."})
    model: str = about("A model folder, a Hub id or a timm name.", str(HERE / "fashion_mnist" / "resnet"))
    revision: str | None = about("The commit, branch or tag of a Hub id.", None)
    checkpoint: str | None = about("A .safetensors state_dict for a timm name without weights.", None)
    dataset: str = about("An embedded name (fashion_mnist), a parquet or folder path, or a Hub id.", "fashion_mnist")
    corruptions: str = about(
        '"all" (the 15), "clean", a group (noise, blur, weather, digital), or names with commas.', "all"
    )
    severity: float = about("From 1 to 5; fractions interpolate the constants.", 5.0)
    preset: str = about('Constants for the image size: "imagenet", "cifar", "tiny"; "auto" goes by the size.', "auto")
    protocol: str = about('"single" forgets before each corruption, "continual" never does.', "single")
    source_dataset: str | None = about("Clean images for methods that need some; those of --dataset by default.", None)
    source_images: int = about("How many of them.", 512)
    limit: int | None = about("Images of each corruption; 0 takes all there are.", 512)
    seed: int = about("Of the order, the corruptions and the methods' own randomness.", 0)
    cache: str = about("The folder for corrupted images.", "runs/cache")
    output: str = about("The folder for cells, comparison.json and figure.png.", "runs/compare")
    cpu: bool = about("Stay on the CPU.", False)


def main() -> None:
    (run,) = HfArgumentParser(RunArguments, description=__doc__).parse_args_into_dataclasses()  # pyright: ignore[reportArgumentType]
    settings = chosen_settings(run.published, Path(run.settings) if run.settings else None)
    contenders = method_specs(run.methods, settings)
    accelerator = start_accelerator(cpu=run.cpu)
    base = load_base_model(run.model, revision=run.revision, checkpoint=run.checkpoint).to(accelerator.device)
    processor, class_names = load_processor(base), load_class_names(base)

    def open_stream(dataset: str, corruptions: str, batch_size: int, limit: int | None) -> Any:
        return load_stream(
            str(EMBEDDED.get(dataset, dataset)),
            corruptions=corruptions,
            severity=run.severity,
            protocol=run.protocol,
            batch_size=batch_size,
            limit=limit,
            seed=run.seed,
            processor=processor,
            class_names=class_names,
            preset="cifar" if dataset in EMBEDDED and run.preset == "auto" else run.preset,
        )

    resources: dict[str, Any] = {"mean": processor.mean, "std": processor.std}
    if any(contender.needs_source for contender in contenders.values()):
        clean = open_stream(run.source_dataset or run.dataset, "clean", 64, run.source_images)
        resources["source_images"] = torch.cat([batch["pixel_values"] for batch in clean])
    comparison = compare(
        base,
        lambda size: cached(open_stream(run.dataset, run.corruptions, size, run.limit or None), run.cache),
        contenders,
        batch_sizes=run.batch_sizes,
        folder=Path(run.output) / "cells",
        resources=resources,
        accelerator=accelerator,
        seed=run.seed,
    )
    if accelerator.is_main_process:
        name = f"{Path(run.model).name}, severity {run.severity:g}, {run.protocol}"
        console = Console(width=None if sys.stdout.isatty() else 160)  # a file has no width of its own
        show(console, comparison, name, Path(run.output))


def show(console: Console, comparison: Any, name: str, output: Path) -> None:
    """Print the tables, and write comparison.json and figure.png."""
    for table in comparison.tables(name):
        console.print(table)
    for line in comparison.refusal_lines():
        console.print(line, highlight=False, markup=False)
    saved = [comparison.to_json(output / "comparison.json"), plot_parameters(comparison, output / "figure.png", name)]
    console.print("saved " + ", ".join(map(str, saved)), highlight=False)


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
