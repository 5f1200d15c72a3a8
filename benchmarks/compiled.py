"""What torch.compile makes of a step: eager, compiled, and with CUDA graphs (mode="reduce-overhead") where a GPU is.

OMP_NUM_THREADS=1 python benchmarks/compiled.py --output benchmarks/results/compiled.txt

All learn from the same images with the same weights, and take turns; a row is the median of a step: CPU seconds of this
process on a CPU, which other programs disturb least, and wall-clock seconds on a GPU. The first step, which compiles,
is a column of its own, in wall-clock seconds; torch keeps what it compiled, so that a second run is quicker there.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import spear_hf.backbones.cifar  # noqa: F401  registers cifar_resnet26 with timm
from spear_hf import Spear, SpearConfig, get_spear_model

ROWS = ("cifar_resnet26:16", "cifar_resnet26:64", "vit_tiny_patch16_224:16")


def contenders(net: nn.Module, device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Name -> a step; every one has a model of its own."""

    def steered() -> nn.Module:
        config = SpearConfig(tau=0.0, alpha_images=0, domain_jump=0.0, class_skew=False)  # one forward a step
        return get_spear_model(copy.deepcopy(net), config).to(device)

    found = {"eager": Spear(steered()).step, "compiled": Spear(steered(), compile=True).step}
    if device == "cuda":
        fast = torch.compile(steered(), fullgraph=True, dynamic=False, mode="reduce-overhead")
        found["reduce-overhead"] = Spear(fast).step
    return found


def measure(row: str, repeats: int, device: str) -> dict[str, tuple[float, float]]:
    """Name -> seconds of the first step and of a later one."""
    name, batch = row.split(":")
    torch.manual_seed(0)
    net = timm.create_model(name).eval()
    size = net.pretrained_cfg["input_size"]
    batches = [torch.randn(int(batch), *size, device=device) for _ in range(4)]
    steps = contenders(net, device)
    first = {label: _seconds(step, batches[0], device, time.perf_counter) for label, step in steps.items()}
    clock = time.perf_counter if device == "cuda" else time.process_time
    for step in steps.values():
        for _ in range(2):
            step(batches[1])
    later: dict[str, list[float]] = {label: [] for label in steps}
    for i in range(repeats):
        for label, step in steps.items():
            later[label].append(_seconds(step, batches[i % 4], device, clock))
    return {label: (first[label], statistics.median(later[label])) for label in steps}


def _seconds(step: Callable[[Tensor], Tensor], x: Tensor, device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = clock()
    step(x)
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="timm name:batch size")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="a text file to append the table to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    shown = Table(title=f"a step, compiled or not, on {where}")
    for column in ("network", "batch", "", "first step, s", "a step, ms", "/ eager"):
        shown.add_column(column, justify="left" if column in ("network", "") else "right")
    for row in args.rows:
        found = measure(row, args.repeats, args.device)
        for label, (first, later) in found.items():
            ratio = later / found["eager"][1]
            shown.add_row(*row.split(":"), label, f"{first:.1f}", f"{1000 * later:.1f}", f"{ratio:.2f}")
        shown.add_section()
    Console(width=100).print(shown)
    if args.output:
        with args.output.open("a") as file:
            Console(file=file, width=100).print(shown)


if __name__ == "__main__":
    main()
