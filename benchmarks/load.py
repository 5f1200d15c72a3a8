"""How long `SpearModel.from_pretrained(base, folder)` takes to load a saved adapter onto a base in memory.

    python benchmarks/load.py --model resnet50

Prints the median and the least time over the repeats in milliseconds, for the boundaries "auto" and "all". The weights
of the timm architecture are random, since they do not change the time.
"""

import argparse
import tempfile
import time
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from spear_hf import SpearConfig, SpearModel, find_boundaries, get_spear_model, load_base_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--repeats", type=int, default=20)
    run = parser.parse_args()
    base = load_base_model(run.model, pretrained=False)
    found = find_boundaries(base)
    shown = Table(title=f"{run.model}, {torch.get_num_threads()} thread(s)")
    for column in ("boundaries", "numbers", "median ms", "least ms", "least CPU ms"):
        shown.add_column(column, justify="left" if column == "boundaries" else "right")
    for boundaries in ("auto", "all"):
        model = get_spear_model(base, SpearConfig(boundaries=boundaries), boundaries=found)
        numbers = model.get_nb_trainable_parameters()[0]
        with torch.no_grad():
            for parameter in model.adapter_parameters():
                parameter.add_(0.1)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            model.unload()
            times = [load_time(base, folder) for _ in range(run.repeats)]
        wall, cpu = ([1000 * t for t in column] for column in zip(*times, strict=True))
        shown.add_row(boundaries, f"{numbers:,}", f"{median(wall):.1f}", f"{min(wall):.1f}", f"{min(cpu):.1f}")
    Console().print(shown)


def load_time(base: torch.nn.Module, folder: str) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one load; the base is unchanged afterwards."""
    wall, cpu = time.perf_counter(), time.process_time()
    model = SpearModel.from_pretrained(base, folder)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    model.unload()
    return taken


if __name__ == "__main__":
    main()
