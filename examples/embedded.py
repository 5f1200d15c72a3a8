"""The embedded model and images, on which every example runs unless told otherwise, and the examples' options."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spear_hf.cli import ImageOptions
from spear_hf.cli.app import DATASET_HELP, MODEL_HELP

FOLDER = Path(__file__).parent / "fashion_mnist"
MODEL = str(FOLDER / "resnet")
IMAGES = str(FOLDER / "test.parquet")

ModelOption = Annotated[str, typer.Option(help=MODEL_HELP)]
DatasetOption = Annotated[str, typer.Option(help=DATASET_HELP)]


def with_preset(images: ImageOptions, dataset: str) -> ImageOptions:
    """The options with the preset of the embedded images, whose size no benchmark has, in place of "auto"."""
    return replace(images, preset="cifar") if dataset == IMAGES and images.preset == "auto" else images
