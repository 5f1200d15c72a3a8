"""How the constants of ClassSkew were chosen: errors, and what is decided, with other values of each.

    python benchmarks/class_skew.py --data ../shared/data --networks resnet resnet20

The images are those of the second half of each test set, which no table of results reports. "few" is the share of
batches, after the first 64 images, in which the stream is taken for one of few classes: 0 is right for the shuffled
streams (clean, fog, noise, pixelated), 1 for those in order (one class, sorted, 15 frames of a class in a row; clean
and under fog).
"""

import argparse
import copy
import json
from pathlib import Path
from statistics import mean

import torch
from any_network import network
from guard import Images, Part, in_turn, load_images
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.learning import class_skew

VALUES = {"MANY": (0.1, 0.3), "FEW": (0.25, 0.5), "IN_TURN": (0.05, 0.2), "NEIGHBOURS": (16, 64)}
SHUFFLED = ("clean", "fog", "gaussian_noise", "pixelate")


def streams(images: Images) -> tuple[list[Part], list[Part]]:
    """The shuffled streams, and those in which few classes come at a time; each of one domain."""
    every, labels = torch.arange(len(images.labels)), images.labels
    one = (labels == 3).nonzero().flatten().repeat(len(every))[: len(every)]
    ordered = (one, labels.argsort(stable=True), every[in_turn(labels, 15, images.seed)])
    return [(name, every) for name in SHUFFLED], [(d, ids) for d in ("clean", "fog") for ids in ordered]


def measured(base: nn.Module, processor: object, images: Images, part: Part, size: int) -> tuple[float, float]:
    """The error in percent, and the share of batches that are taken for few classes."""
    domain, ids = part
    tta, wrong, few = Spear(get_spear_model(copy.deepcopy(base), SpearConfig())), 0, []
    for chosen in ids.split(size):
        x: Tensor = processor(images.of(domain)[chosen])  # pyright: ignore
        wrong += int((tta.step(x).argmax(1) != images.labels[chosen]).sum())
        few.append(tta.stream.shows_few_classes)
    return 100 * wrong / len(ids), mean(few[64 // size :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of data that benchmarks/any_network.py takes")
    parser.add_argument("--networks", nargs="+", default=["resnet", "resnet20"])
    parser.add_argument("--limit", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    run = parser.parse_args()
    chosen = {name: getattr(class_skew, name) for name in VALUES}
    settings = [chosen, *(chosen | {name: v} for name, values in VALUES.items() for v in values)]
    for name in run.networks:
        base, path, processor = network(name, Path(run.data), None)
        images = load_images(str(path), 0, run.limit, held_out=True)
        table = Table(title=f"{name}, batch {run.batch_size}, {run.limit} held-out images of each stream")
        for column in (*VALUES, "shuffled error", "few", "ordered error", "few"):
            table.add_column(column, justify="right")
        for setting in settings:
            for constant, value in setting.items():
                setattr(class_skew, constant, value)
            rows = [[measured(base.eval(), processor, images, p, run.batch_size) for p in k] for k in streams(images)]
            means = [mean(column) for kind in rows for column in zip(*kind, strict=True)]
            shown = [f"{v:.2f}" for v in means]
            table.add_row(*(f"{v:g}" for v in setting.values()), *shown)
            print(json.dumps({"network": name} | setting | {"found": shown, "rows": rows}), flush=True)
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
