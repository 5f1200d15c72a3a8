"""What a guard costs and saves on streams that are hard to adapt to: SPeaR with and without a guard, and the source.

    python benchmarks/guard.py --output runs/guard.json                                # every stream but the long one
    python benchmarks/guard.py --streams continual --steps 20000 --batch-size 4 --output runs/guard_long.json

Both methods predict each batch in turn, so that their times come from one run. Noise images have no label and are not
counted. A stream on which SPeaR stops with an error says so. "over" is how many points the guarded error is above the
lower of the other two; allowed are 2. To tune `--policy '{"margin": 0.03}'`, take images that no table has: --held-out.
"""

import argparse
import copy
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from spear_hf import Guard, GuardPolicy, Spear, SpearConfig, TTAMethod, get_spear_model, load_base_model, load_processor
from spear_hf.data.corruptions import CORRUPTIONS, corrupt_batch, sample_rng
from spear_hf.errors import InputError
from spear_hf.learning.record import StepRecord
from spear_hf.utils.files import write_atomically

NAMES = list(CORRUPTIONS)
NOISE = "noise"


@dataclass
class Images:
    """(N, H, W, 3) uint8 images by domain, made at the first request, and the labels (N,) of the clean images."""

    clean: Tensor
    labels: Tensor
    seed: int
    made: dict[str, Tensor] = field(default_factory=dict)

    def of(self, domain: str) -> Tensor:
        """The images of a corruption at severity 5, "clean", or uniform "noise"."""
        if domain == "clean":
            return self.clean
        if domain not in self.made:
            generator = torch.Generator().manual_seed(self.seed)
            self.made[domain] = (
                torch.randint(0, 256, self.clean.shape, generator=generator, dtype=torch.uint8)
                if domain == NOISE
                else self._corrupted(domain)
            )
        return self.made[domain]

    def _corrupted(self, name: str) -> Tensor:
        draws = [sample_rng(self.seed, "cifar", name, 5, i) for i in range(len(self.clean))]
        return corrupt_batch(self.clean, name, 5, draws, "cifar")


Part = tuple[str, Tensor]  # a domain and which of its images, in order


def parts(stream: str, images: Images, steps: int, batch_size: int) -> list[Part]:
    """The stream as a sequence of runs; the images of a run share a domain."""
    every, labels = torch.arange(len(images.labels)), images.labels
    half, by_class = len(every) // 2, labels.argsort(stable=True)
    one = (labels == 3).nonzero().flatten().repeat(len(every))[: len(every)]
    same = every[: 4 * batch_size].view(-1, batch_size).repeat(1, 16).flatten()  # each batch 16 times
    frames = every[in_turn(labels, 32, images.seed)]
    if stream == "continual":
        rounds = -(-steps * batch_size // (len(NAMES) * len(every)))
        return [(name, every) for name in NAMES * rounds]
    return {
        "one class": [("clean", one), ("gaussian_noise", one)],
        "labels sorted": [(name, by_class) for name in ("clean", "jpeg_compression", "fog")],
        "duplicates": [(name, same) for name in ("clean", "fog", "gaussian_noise")],
        "noise images": [("clean", every[:half]), (NOISE, every), ("clean", every[half:]), ("fog", every)],
        "rate x 30": [(name, every) for name in ("gaussian_noise", "clean", "fog")],
        "clean-fog-clean": [("clean", every[:half]), ("fog", every), ("clean", every[half:])],
        "NaN pixels": [("fog", every)],
        "sorted fog": [("fog", by_class)],
        "one clean class": [("clean", one)],
        "clean frames": [("clean", frames)],
        "foggy frames": [("fog", frames)],
        "fog": [("fog", every)],
    }[stream]


STREAMS = (
    *("one class", "labels sorted", "duplicates", "noise images", "rate x 30", "clean-fog-clean", "NaN pixels"),
    *("sorted fog", "one clean class", "clean frames", "foggy frames", "fog"),
)


def in_turn(labels: Tensor, frames: int, seed: int) -> list[int]:
    """Images in runs of `frames` of one class, as a video shows them; which class comes next is drawn at random."""
    generator, ids = torch.Generator().manual_seed(seed), []
    left = [(labels == c).nonzero().flatten().tolist() for c in labels.unique()]
    while left:
        chosen = left[int(torch.randint(len(left), (1,), generator=generator))]
        ids += chosen[:frames]
        del chosen[:frames]
        left = [images for images in left if images]
    return ids


def batches(runs: list[Part], images: Images, processor: Any, size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(domain, pixel_values, ids) of each batch; a batch has images of one domain only."""
    for domain, ids in runs:
        for chosen in ids.split(size):
            yield domain, processor(images.of(domain)[chosen]), chosen


@dataclass
class Row:
    """A line of the table."""

    stream: str
    n: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: {"SPeaR": 0.0, "guarded": 0.0})
    stopped: str = ""
    events: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    drift: float = 0.0

    def error(self, name: str) -> str:
        """The error in percent."""
        return self.stopped if name == "SPeaR" and self.stopped else f"{100 * self.wrong[name] / self.n:.2f}"


def measure(stream: str, run: argparse.Namespace, base: nn.Module, processor: Any, images: Images) -> Row:
    """Run both methods on one stream."""
    changes: dict[str, Any] = {"learning_rate": 0.9} if stream == "rate x 30" else {}
    config = SpearConfig.from_dict(json.loads(run.config) | changes)
    spear, guarded = (Spear(get_spear_model(copy.deepcopy(base), config)) for _ in range(2))
    guard = Guard(guarded, GuardPolicy.from_dict(json.loads(run.policy)))
    methods: dict[str, TTAMethod] = {"SPeaR": spear, "guarded": guard}
    row, sources = Row(stream), {}
    for step, (domain, x, ids) in enumerate(
        batches(parts(stream, images, run.steps, run.batch_size), images, processor, run.batch_size)
    ):
        if step == run.steps:
            break
        if stream == "NaN pixels" and step == 8:
            x[1:3, :, 5:9, 5:9] = torch.nan
        if domain not in sources and domain != NOISE:
            sources[domain] = source_answers(base, processor, images.of(domain))
        counted = 0 if domain == NOISE else len(ids)
        row.n += counted
        if counted:
            row.wrong["source"] += int((sources[domain][ids] != images.labels[ids]).sum())
        for name, method in methods.items():
            if name == "SPeaR" and row.stopped:
                continue
            began = time.process_time()
            try:
                answers = method.step(x).argmax(1)
            except InputError:
                row.stopped = f"stops at step {step}"
                continue
            row.seconds[name] += time.process_time() - began
            row.wrong[name] += int((answers != images.labels[ids]).sum()) if counted else 0
        assert isinstance(guard.last, StepRecord)
        row.drift = max(row.drift, guard.last.gamma_deviation)
        row.events.update(event.split(":")[0] for event in guard.last.events)
        row.said += [f"{step} {domain}: {event}" for event in guard.last.events]
        if step % 1000 == 999 and row.n:
            print(json.dumps({"stream": stream, "step": step + 1} | shown(row)), flush=True)
    return row


def shown(row: Row) -> dict[str, Any]:
    """The numbers of a row, JSON-ready."""
    figures = {name: row.error(name) for name in ("source", "SPeaR", "guarded")}
    ratio = "" if row.stopped else f"{row.seconds['guarded'] / row.seconds['SPeaR']:.3f}"
    best = min(row.wrong[name] for name in ("source",) + (() if row.stopped else ("SPeaR",)))
    figures["over"] = f"{100 * (row.wrong['guarded'] - best) / row.n:.2f}"
    return {"n": row.n} | figures | {"time": ratio, "events": dict(row.events), "largest_gamma": row.drift}


@torch.no_grad()
def source_answers(base: nn.Module, processor: Any, images: Tensor) -> Tensor:
    """(N,) predictions of the source."""
    return torch.cat([base(processor(part)).logits.argmax(1) for part in images.split(128)])


def load_images(data: str, seed: int, limit: int, held_out: bool = False) -> Images:
    """The first `limit` images of the first half in a seeded order; of the second half if they are to be held out."""
    rows = Dataset.from_parquet(data)
    half = len(rows) // 2
    order = torch.randperm(half, generator=torch.Generator().manual_seed(seed))[:limit] + half * held_out
    chosen: Any = rows.select(order.tolist()).with_format("torch")
    pixels = [row["image"].permute(1, 2, 0) if row["image"].dim() == 3 else row["image"] for row in chosen]
    colour = [p.expand(*p.shape[:2], 3) if p.dim() == 3 else p[..., None].expand(*p.shape, 3) for p in pixels]
    return Images(torch.stack(colour).contiguous(), torch.stack([row["label"] for row in chosen]), seed)


@torch.no_grad()
def keep_two_classes(base: nn.Module, images: Images) -> None:
    """Give the base a head of two of its classes, and keep images of which 95 % are of the first, in their order."""
    head = [module for module in base.modules() if isinstance(module, nn.Linear)][-1]
    head.weight, head.bias = nn.Parameter(head.weight[[3, 7]]), nn.Parameter(head.bias[[3, 7]])
    base.config.num_labels = 2  # pyright: ignore
    first, second = ((images.labels == c).nonzero().flatten() for c in (3, 7))
    kept = torch.cat([first, second[: len(first) // 19]]).sort().values
    images.clean, images.labels = images.clean[kept], (images.labels[kept] == 7).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="examples/fashion_mnist/resnet")
    parser.add_argument("--data", default="examples/fashion_mnist/test.parquet")
    parser.add_argument("--streams", nargs="+", default=list(STREAMS))
    parser.add_argument("--steps", type=int, default=20_000, help="the most steps on each stream")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--limit", type=int, default=1024, help="images of each domain")
    parser.add_argument("--held-out", action="store_true", help="images of the second half, which no table reports")
    parser.add_argument(
        "--two-classes",
        action="store_true",
        help="a head of two classes (3 and 7), and images of which 95 %% are of the first",
    )
    parser.add_argument("--config", default="{}", help="JSON: SpearConfig fields")
    parser.add_argument("--policy", default="{}", help="JSON: GuardPolicy fields")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/guard.json")
    run = parser.parse_args()

    base = load_base_model(run.model).eval()
    images = load_images(run.data, run.seed, run.limit, run.held_out)
    if run.two_classes:
        keep_two_classes(base, images)
    table = Table(title=f"{Path(run.model).name}, batch {run.batch_size}, severity 5; error in %, time over SPeaR's")
    for column in ("stream", "n", "source", "SPeaR", "guarded", "over", "time", "events"):
        table.add_column(column, justify="left" if column in ("stream", "events") else "right")
    rows = []
    for stream in run.streams:
        row = measure(stream, run, base, load_processor(base), images)
        figures = shown(row)
        events = ", ".join(f"{count} {word}" for word, count in row.events.items())
        table.add_row(stream, *(str(figures[k]) for k in ("n", "source", "SPeaR", "guarded", "over", "time")), events)
        rows.append({"stream": stream} | figures | {"said": row.said})
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "said"}), flush=True)
        write_atomically(run.output, json.dumps({"settings": vars(run), "rows": rows}, indent=1) + "\n")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
