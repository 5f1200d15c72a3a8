"""Images per second of a stream, end to end, compared with plain decoding of the same files.

    python benchmarks/stream.py [--data SHARED] [--rounds 3] [--output benchmarks/results/stream.md]

End to end means: read, decode, crop, corrupt (the 15 at severity 5, the same number of images of each), JPEG if the
preset has it, resize and normalise, stack; from the first request to the last batch, with the start of the workers.
Plain decoding is Pillow on the same bytes in one process. All variants take turns for some rounds, and the best round
counts, because another program on the machine can make a round only slower. Each process has one thread.
"""

import argparse
import os
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, load_dataset
from datasets import Image as ImageFeature
from PIL import Image
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from spear_hf.data.load_stream import load_stream
from spear_hf.data.processor import Processor, load_processor
from spear_hf.utils.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SPEAR_SHARED_DATA", ROOT.parent / "shared" / "data"))
WORKERS = (0, 1, 2)
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def plain_decoding(dataset: Dataset, count: int) -> None:
    """Decode `count` images to RGB arrays and drop them."""
    column = dataset.cast_column("image", ImageFeature(decode=False))["image"]
    for i in range(count):
        np.asarray(Image.open(BytesIO(column[i % len(dataset)]["bytes"])).convert("RGB"))


def run_stream(dataset: Dataset, **options: Any) -> None:
    """Iterate over a stream once."""
    for batch in load_stream(dataset, **options):
        batch["pixel_values"].sum()


def best_rates(variants: dict[str, tuple[Callable[[], None], int]], rounds: int) -> dict[str, float]:
    """Images per second of each variant in its best round; the variants take turns."""
    best = dict.fromkeys(variants, 0.0)
    for _ in range(rounds):
        for name, (run, count) in variants.items():
            start = time.perf_counter()
            run()
            best[name] = max(best[name], count / (time.perf_counter() - start))
    return best


def measure(file: Path, preset: str, processor: Processor, limit: int, rounds: int) -> dict[str, float]:
    """Rates of plain decoding, and of a clean and a corrupted stream with each number of workers."""
    dataset = load_dataset("parquet", data_files=str(file), split="train")
    options: dict[str, Any] = {"processor": processor, "batch_size": 32, "shuffle": True}
    variants: dict[str, tuple[Callable[[], None], int]] = {
        "plain decoding": (lambda: plain_decoding(dataset, 4 * limit), 4 * limit),
        "clean stream": (lambda: run_stream(dataset, corruptions="clean", limit=4 * limit, **options), 4 * limit),
    }
    for workers in WORKERS:
        corrupted = options | {"corruptions": "all", "preset": preset, "limit": limit, "num_workers": workers}
        variants[f"{workers} workers"] = (lambda o=corrupted: run_stream(dataset, **o), 15 * limit)
    return best_rates(variants, rounds)


def cases(data: Path) -> dict[str, tuple[Path, str, Processor, int]]:
    """File, preset, processor and images of each domain, for each row of the table."""
    found = {
        "Fashion-MNIST, 28 to 64": (ROOT / "examples" / "fashion_mnist" / "test.parquet", "cifar", 64, 256),
        "CIFAR-10, 32": (data / "cifar10" / "test.parquet", "cifar", 32, 256),
        "ImageNet, 256 to 224": (data / "imagenet_sample" / "train_1000.parquet", "imagenet", 224, 32),
    }
    return {
        name: (file, preset, load_processor(None, mean=MEAN, std=STD, size=size), limit)
        for name, (file, preset, size, limit) in found.items()
        if file.exists()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with cifar10 and imagenet_sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a Markdown file")
    args = parser.parse_args()

    torch.set_num_threads(1)
    table = Table(title="images/s, and how much of plain decoding that is", box=MARKDOWN)
    table.add_column("images")
    names = ("plain decoding", "clean stream", *(f"{workers} workers" for workers in WORKERS))
    for name in names:
        table.add_column(name, justify="right")
    for case, (file, preset, processor, limit) in cases(args.data).items():
        rates = measure(file, preset, processor, limit, args.rounds)
        plain = rates["plain decoding"]
        cells = [
            f"{rates[name]:,.0f}" + (f" ({rates[name] / plain:.2f} x)" if name != names[0] else "") for name in names
        ]
        table.add_row(case, *cells)
    console = Console(record=True, width=120)
    console.print(table)
    if args.output:
        command = f"python benchmarks/stream.py --rounds {args.rounds}"
        cores = f"{os.cpu_count()} cores, one thread for each process, other programs running"
        text = console.export_text()
        write_atomically(args.output, f"# Streams, end to end\n\n`{command}`; {cores}.\n\n{text}\n")


if __name__ == "__main__":
    main()
