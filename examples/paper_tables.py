"""The paper's tables and figures, one command each: our figures, and the paper's in brackets where they compare.

    python examples/paper_tables.py table1                              # embedded networks and images, offline
    python examples/paper_tables.py table1 --data SHARED --limit 1000   # CIFAR-10 and an ImageNet sample in a folder
    python examples/paper_tables.py table1 --on paper --limit 0 \\
        --set cifar10.checkpoint=resnet26.safetensors --set cifar100.checkpoint=resnext29.safetensors \\
        --set cifar100.images=/data/CIFAR-100-C --set imagenet.clean=/data/imagenet/val     # the reproduction

Rivals have their published hyper-parameters. `spear` is SPeaR under this package's defaults, `spear_paper` with what
the paper publishes in their place (alpha 0.5, diversity at full weight in every batch). `--settings` is a JSON file of
hyper-parameters by label, as for compare_methods.py. Finished cells stay in `--output`, and a run that was stopped goes
on with the next. What cannot be had here is a line that says so. The paper's figures of representations (AMD, CKA,
linear probes, scarce confidence) are examples/analyze.py's.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from paper import methods_tables, variant_tables
from paper.run import CONSOLE, Run
from paper.setups import BENCHMARKS, WORLDS, make_setups

from spear_hf import SpearError

TABLES: dict[str, tuple[Callable[[Run], None], tuple[str, ...], str]] = {
    "table1": (methods_tables.table1, ("cifar10", "cifar100", "imagenet"), "all methods, every corruption, figure 2"),
    "table2": (methods_tables.table2, ("vit",), "ViT-B/16, every corruption"),
    "table3": (methods_tables.table3, ("cifar10", "cifar100", "imagenet"), "continual adaptation"),
    "table4": (variant_tables.table4, ("cifar10", "cifar100"), "ablation of the objective"),
    "gn": (methods_tables.gn, ("gn",), "ResNet-50-GN"),
    "nfnet": (methods_tables.nfnet, ("nfnet",), "NFNet-F0"),
    "alpha": (variant_tables.alpha, ("cifar10", "cifar100"), "alpha against the batch size"),
    "grouping": (variant_tables.grouping, ("vit",), "groups of transformer blocks"),
    "gate": (variant_tables.gate, ("cifar10",), "with and without the hard gate"),
    "preservation": (variant_tables.preservation, ("cifar10", "cifar100"), "clean accuracy on a continual stream"),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="table", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--on", choices=list(WORLDS), help="default: embedded, or shared where --data is given")
    add("--data", type=Path, help="the folder of real images and weights, for --on shared")
    add(
        "--set", action="append", default=[], metavar="KEY.FIELD=VALUE", help="another model, images, checkpoint, clean"
    )
    add("--only", choices=list(BENCHMARKS), nargs="+", help="of the table's columns")
    add("--methods", help="labels with commas, in place of the table's own")
    add("--settings", type=Path, help="a JSON file of hyper-parameters by label")
    add("--batch-sizes", type=int, nargs="+", help="in place of the table's own")
    add("--limit", type=int, default=512, help="images of each corruption; 0 takes all")
    add("--clean-images", type=int, default=512, help="for looks at clean images between steps")
    add("--seed", type=int, default=0)
    add("--cache", type=Path, default=Path("runs/cache"), help="where corrupted images are kept")
    add("--output", type=Path, default=Path("runs/paper"))
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, (_, _, text) in TABLES.items():
        commands.add_parser(name, parents=[common], help=text)
    options = parser.parse_args()
    options.on = options.on or ("shared" if options.data else "embedded")
    return options


def main() -> None:
    options = parse()
    make, keys, _ = TABLES[options.table]
    setups = make_setups(options.on, options.data, options.set)
    for key in keys if options.only is None else [key for key in keys if key in options.only]:
        if key not in setups:
            note = f"{key} was not run: nothing stands in for it in the {options.on} world; see --on paper"
            CONSOLE.print(note, soft_wrap=True)
            continue
        try:
            make(Run(key, setups[key], options))
        except SpearError as error:
            CONSOLE.print(f"{key} was not run: {type(error).__name__}: {error}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
