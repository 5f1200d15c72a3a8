"""Many streams and many threads on one model: equality with a model each, cost, state, eight cameras, throughput.

    python benchmarks/streams.py                                  # all parts, on the embedded networks
    python benchmarks/streams.py --parts equality,cost
    python benchmarks/streams.py --parts one --networks resnet,resnet50 --repeats 40

Parts: `equality` (answers and RSPs of `step(streams=)` against a model for each stream), `cost` (64 streams against one
in a batch of 64), `states` (10,000 streams, 500 of them in memory), `cameras` (eight corruptions as eight streams, all
in one batch, against a model each), `threads` (throughput of two threads against one), `one` (a step at batch 1 against
a forward of the bare model). Times are CPU seconds of one thread, taken in turns, medians; but for `threads`, which are
seconds of the clock.
"""

import argparse
import copy
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import timm
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.evaluation.cost import SavedBytes, storages_of

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"
CORRUPTIONS = (
    "gaussian_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "fog",
    "contrast",
    "brightness",
    "jpeg_compression",
)
OPEN = {"tau": 0.0, "hard_gate": False}
WARM = 70  # images at the start of a domain, with a further forward each
LEARNING = {"class_skew": False}  # where all answers are alike, as those of random weights, nothing would be learned
CONFIGS = {
    "paper": SpearConfig.paper(**OPEN),
    "remembering": SpearConfig(domain_jump=0.0, alpha_images=0),
    "default": SpearConfig(),
}


def network(name: str) -> tuple[nn.Module, int]:
    """An embedded network or a timm one with random weights, and the side of its images."""
    if name in ("resnet", "vit"):
        return load_base_model(str(EMBEDDED / name)), 28
    torch.manual_seed(0)
    return timm.create_model(name).eval(), 224


def embedded_images(name: str, corruption: str, count: int, batch_size: int = 256) -> tuple[Tensor, Tensor]:
    """Pixel values and labels of the first test images under one corruption at severity 5."""
    rows = Dataset.from_parquet(str(EMBEDDED / "test.parquet")).select(range(count))
    base = load_base_model(str(EMBEDDED / name))
    options = {"batch_size": batch_size, "processor": load_processor(base), "preset": "cifar", "shuffle": True}
    stream = load_stream(rows, corruptions=corruption, **options)
    batches = list(stream)
    return torch.cat([b["pixel_values"] for b in batches]), torch.cat([b["labels"] for b in batches])


def learner(base: nn.Module, config: SpearConfig, dtype: torch.dtype = torch.float32, **options: Any) -> Spear:
    """A Spear on a copy of the base; in float64 its RSPs are of double precision, too."""
    model = get_spear_model(copy.deepcopy(base).to(dtype), config)
    for parameter in model.adapter_parameters():
        parameter.data = parameter.data.to(dtype)
    return Spear(model, **options)


def medians(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """CPU seconds of this thread for each of them, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            began = time.thread_time()
            step()
            seconds[name].append(time.thread_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, *columns: str) -> Table:
    made = Table(title=title)
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place == 0 else "right")
    return made


# --- the parts ------------------------------------------------------------------------------------------------------


def equality(console: Console, networks: list[str], repeats: int) -> None:
    """Largest differences over eight steps of uneven rows, drawn from eight corruptions."""
    shown = table("step(streams=) against a model each", "network", "config", "S", "dtype", "answers", "RSPs")
    for name in networks:
        pools = [embedded_images(name, corruption, 256)[0] for corruption in CORRUPTIONS]
        base, _ = network(name)
        for label, config in CONFIGS.items():
            for count in (1, 8, 64):
                for dtype in (torch.float32, torch.float64):
                    answers, values = _differences(base, config, count, dtype, pools)
                    shown.add_row(name, label, str(count), str(dtype)[6:], f"{answers:.1e}", f"{values:.1e}")
    console.print(shown)


def _differences(
    base: nn.Module, config: SpearConfig, count: int, dtype: torch.dtype, pools: list[Tensor], steps: int = 8
) -> tuple[float, float]:
    many, alone = learner(base, config, dtype), [learner(base, config, dtype) for _ in range(count)]
    generator, answers, values = torch.Generator().manual_seed(0), 0.0, 0.0
    for t in range(steps):
        owners = [s for s in range(count) for _ in range(1 + (3 * s + t) % 4)]
        owners = [owners[i] for i in torch.randperm(len(owners), generator=generator).tolist()]
        picks = torch.randint(256, (len(owners),), generator=generator).tolist()
        x = torch.stack([pools[s % len(pools)][i] for s, i in zip(owners, picks, strict=True)]).to(dtype)
        found = many.step(x, streams=[f"cam-{owner}" for owner in owners])
        for s, tta in enumerate(alone):
            rows = [i for i, owner in enumerate(owners) if owner == s]
            answers = max(answers, float((tta.step(x[rows]) - found[rows]).abs().max()))
            own, shared = tta.stream.rsp, many.streams[f"cam-{s}"].rsp
            values = max(values, *(float((own[key] - shared[key]).abs().max()) for key in own))
    return answers, values


def cost(console: Console, networks: list[str], repeats: int) -> None:
    """A batch of 64 images of 64 streams against the same batch of one stream."""
    shown = table("64 images: 64 streams against 1", "network", "config", "time", "saved memory", "bytes a stream")
    for name in networks:
        base, side = network(name)
        pool = embedded_images(name, "fog", 1024)[0] if side == 28 else torch.randn(128, 3, side, side)
        for label, config in CONFIGS.items():
            one, many = learner(base, config, **LEARNING), learner(base, config, **LEARNING)
            names = [f"cam-{i}" for i in range(64)]
            steps = {
                "one": lambda t=one: t.step(pool[torch.randperm(len(pool))[:64]], streams="cam"),  # noqa: B023
                "many": lambda t=many: t.step(pool[torch.randperm(len(pool))[:64]], streams=names),  # noqa: B023
            }
            for _ in range(WARM):
                for step in steps.values():
                    step()
            seconds, memory = medians(steps, repeats), {}
            for key, tta in (("one", one), ("many", many)):
                with SavedBytes(storages_of(tta)) as saved:
                    steps[key]()
                memory[key] = saved.peak
            size = many.streams["cam-0"].nbytes
            ratio = seconds["many"] / seconds["one"]
            shown.add_row(name, label, f"{ratio:.2f} x", f"{memory['many'] / memory['one']:.2f} x", f"{size:,}")
    console.print(shown)


def states(console: Console, networks: list[str], repeats: int) -> None:
    """10,000 streams, 500 in memory: every stream is stepped twice."""
    base, _ = network("resnet")
    x = embedded_images("resnet", "fog", 64)[0]
    tta = learner(base, CONFIGS["remembering"], max_streams_in_memory=500)
    count, seconds = 10_000, []
    for start in [*range(0, count, 50)] * 2:
        names = [f"cam-{i}" for i in range(start, min(start + 50, count))]
        began = time.thread_time()
        tta.step(x[: len(names)], streams=names)
        seconds.append(time.thread_time() - began)
    known = learner(base, CONFIGS["remembering"])
    plain = medians({"step": lambda: known.step(x[:50], streams=[f"cam-{i}" for i in range(50)])}, 9)["step"]
    twice = all(tta.streams[f"cam-{i}"].num_steps == 2 for i in range(0, count, 97))
    files = list(tta.streams.folder.glob("*"))
    shown = table(
        "10,000 streams, 500 in memory",
        "streams",
        "in memory",
        "stepped twice",
        "step, new",
        "step, from disk",
        "on disk",
    )
    half = len(seconds) // 2
    parts = [f"{statistics.median(part) / plain:.2f} x" for part in (seconds[:half], seconds[half:])]
    size = sum(f.stat().st_size for f in files) / 1e6
    shown.add_row(f"{len(tta.streams):,}", str(len(tta.streams.in_memory)), str(twice), *parts, f"{size:.0f} MB")
    console.print(shown, "[dim]against a step of 50 streams that are all in memory[/dim]")


def cameras(console: Console, networks: list[str], repeats: int) -> None:
    """Eight cameras under eight corruptions: error in percent, all in one batch and with a model each."""
    shown = table(
        "eight cameras, error in %", "network", "config", "batch", "source", "one state", "one batch", "a model each"
    )
    for name in networks:
        base, _ = network(name)
        data = [embedded_images(name, corruption, 256) for corruption in CORRUPTIONS]
        labels = torch.cat([y for _, y in data])
        with torch.no_grad():
            source = torch.cat([base(x).logits for x, _ in data])
        for label, config in (("default", SpearConfig()), ("paper", SpearConfig.paper())):
            for each in (1, 8):
                alone = [learner(base, config) for _ in data]
                apart = torch.cat(
                    [torch.cat([t.step(p) for p in x.split(each)]) for t, (x, _) in zip(alone, data, strict=True)]
                )
                together = _in_one_batch(learner(base, config), data, each, named=True)
                mixed = _in_one_batch(learner(base, config), data, each, named=False)
                errors = [100 * float((a.argmax(1) != labels).float().mean()) for a in (source, mixed, together, apart)]
                shown.add_row(name, label, f"8 x {each}", *(f"{e:.2f}" for e in errors))
    console.print(shown)


def _in_one_batch(tta: Spear, data: list[tuple[Tensor, Tensor]], each: int, *, named: bool) -> Tensor:
    """Logits of all cameras, camera after camera; every step has `each` images of each of them."""
    parts: list[list[Tensor]] = [[] for _ in data]
    for start in range(0, len(data[0][0]), each):
        x = torch.cat([images[start : start + each] for images, _ in data])
        names = [f"cam-{i}" for i in range(len(data)) for _ in range(each)]
        logits = tta.step(x, streams=names) if named else tta.step(x)
        for kept, rows in zip(parts, logits.split(each), strict=True):
            kept.append(rows)
    return torch.cat([torch.cat(kept) for kept in parts])


def threads(console: Console, networks: list[str], repeats: int) -> None:
    """Calls a second of two threads against one, beside the bare model's."""
    shown = table("two threads against one", "network", "bare model", "SpearModel", "wrong bits beside a step")
    for name in networks:
        base, side = network(name)
        x = torch.randn(64 if side == 28 else 8, 3, side, side)  # less is work in Python, of which one runs at a time
        model = get_spear_model(copy.deepcopy(base), SpearConfig())
        ratios = [_throughput(m, x, 2) / _throughput(m, x, 1) for m in (base, model)]
        shown.add_row(
            name,
            *(f"{r:.2f} x" for r in ratios),
            str(_wrong_answers(model, x[:8] if side == 28 else x[:1], calls=500 if side == 28 else 20)),
        )
    console.print(shown)


def _throughput(model: nn.Module, x: Tensor, count: int, seconds: float = 3.0) -> float:
    calls, stop = [0] * count, time.perf_counter() + seconds

    @torch.no_grad()
    def work(i: int) -> None:
        while time.perf_counter() < stop:
            with torch.no_grad():
                model(x)
            calls[i] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(calls) / seconds


def _wrong_answers(model: Any, x: Tensor, count: int = 8, calls: int = 500) -> int:
    """Of 8 threads x 500 calls beside a thread that steps another adapter and named streams."""
    model.add_adapter("learning", SpearConfig(**OPEN))
    batches = [x + i for i in range(count)]
    with torch.no_grad():
        expected = [getattr(out := model(b), "logits", out) for b in batches]
    wrong, done = [0], threading.Event()

    def step() -> None:
        with model.use_adapter("learning"):
            tta = Spear(model)
            while not done.is_set():
                tta.step(x)
                tta.step(x, streams=["a", "b"] * (len(x) // 2))

    def work(i: int) -> None:
        for _ in range(calls):
            with torch.no_grad():
                out = model(batches[i])
            if not torch.equal(getattr(out, "logits", out), expected[i]):
                wrong[0] += 1

    stepping = threading.Thread(target=step)
    workers = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in (stepping, *workers):
        thread.start()
    for worker in workers:
        worker.join()
    done.set()
    stepping.join()
    return wrong[0]


def one(console: Console, networks: list[str], repeats: int) -> None:
    """A step at batch 1 against a forward of the bare model without gradients."""
    shown = table("a step at batch 1, in forwards", "network", *CONFIGS)
    for name in networks:
        base, side = network(name)
        images = embedded_images(name, "fog", 1024)[0] if side == 28 else torch.randn(64, 3, side, side)
        order: Iterator[int] = iter(torch.randint(len(images), (10**6,)).tolist())

        def forward() -> None:
            with torch.no_grad():
                base(images[next(order)][None])  # noqa: B023

        ratios = []
        for config in CONFIGS.values():
            tta = learner(base, config, **({} if side == 28 else LEARNING))
            for _ in range(WARM):
                tta.step(images[next(order)][None])
            steps = {"step": lambda t=tta: t.step(images[next(order)][None]), "forward": forward}  # noqa: B023
            seconds = medians(steps, repeats)
            ratios.append(seconds["step"] / seconds["forward"])
        shown.add_row(name, *(f"{r:.2f}" for r in ratios))
    console.print(shown)


PARTS = {part.__name__: part for part in (equality, cost, states, cameras, threads, one)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas, of {', '.join(PARTS)}")
    parser.add_argument("--networks", default="resnet,vit", help="resnet, vit (embedded), or timm names")
    parser.add_argument("--repeats", type=int, default=15, help="of each timing; the median is shown")
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in args.parts.split(","):
        PARTS[part](console, args.networks.split(","), args.repeats)


if __name__ == "__main__":
    main()
