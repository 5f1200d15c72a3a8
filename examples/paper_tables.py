"""The paper's tables and figures, one word each: our numbers, and the paper's in brackets where they are comparable.

    python examples/paper_tables.py table1                              # embedded networks and images, offline
    python examples/paper_tables.py table1 --data SHARED --limit 1000   # CIFAR-10 and an ImageNet sample in a folder
    python examples/paper_tables.py table1 --on paper --limit 0 \\
        --set cifar10.checkpoint=resnet26.safetensors --set cifar100.checkpoint=resnext29.safetensors \\
        --set cifar100.images=/data/CIFAR-100-C --set imagenet.clean=/data/imagenet/val     # the reproduction

Rivals have their published hyper-parameters. `spear` is SPeaR with this package's defaults, `spear_paper` with the
paper's values (alpha 0.5, diversity at full weight in every batch), which the tables of variants (ablation, alpha,
grouping, gate, preservation) change; `--variants-of spear` has them change the defaults. `--settings` is a JSON file of
hyper-parameters by label, as for compare_methods.py.

A finished cell (a method at a batch size) is kept in `--output` and is a line of cells.csv there. The same command goes
on with the next cell, and within a cell from its last checkpoint. Several processes may share `--output` if each runs
other methods or batch sizes: the same command without these options then prints all.
A column that cannot run here is one line that says why. examples/analyze.py makes the paper's figures of
representations (AMD, CKA, linear probes, scarce confidence).
"""

from collections.abc import Callable
from typing import Annotated, Literal

import typer
from paper import methods_tables, variant_tables
from paper.run import CONSOLE, Run, TableOptions
from paper.setups import make_setups

from spear_hf import SpearError
from spear_hf.cli import expanded, script

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


NAMES = Literal[
    "table1", "table2", "table3", "table4", "gn", "nfnet", "alpha", "grouping", "gate", "preservation"
]  # TABLES has the same; a type checker wants them spelled


@expanded()
def main(
    table: Annotated[NAMES, typer.Argument(help="; ".join(f"{name}: {text}" for name, (_, _, text) in TABLES.items()))],
    options: TableOptions,
) -> None:
    make, keys, _ = TABLES[table]
    setups = make_setups(options.world, options.data, options.set)
    only = options.only.split(",") if options.only else keys
    for key in (key for key in keys if key in only):
        if key not in setups:
            note = f"{key} was not run: nothing stands in for it in the {options.world} world; see --on paper"
            CONSOLE.print(note, soft_wrap=True)
            continue
        try:
            make(Run(key, setups[key], options, table))
        except SpearError as error:
            CONSOLE.print(f"{key} was not run: {type(error).__name__}: {error}", markup=False, soft_wrap=True)


app = script(main, __doc__)

if __name__ == "__main__":
    app()
