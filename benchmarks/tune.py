"""Choose SpearConfig's defaults on held-out images, never on the stream that is reported.

    python examples/train_source.py --export held_out --data FASHION_MNIST_FOLDER --output runs/held_out.parquet
    python benchmarks/tune.py --model examples/fashion_mnist/resnet --data runs/held_out.parquet \
        --output runs/tune_resnet.jsonl --sweep '{"learning_rate": [0.003, 0.01], "boundaries": ["0", "0,1"]}'

A trial is a configuration at a batch size, over the 15 corruptions at severity 5, with a reset before each corruption
or, with --continual, before the first one only. Each trial is one line of the output file. A trial in the file does not
run again, so the sweep can be stopped and resumed. At the end all trials are printed, best mean first; "worst" is the
largest rise over the source's error on any corruption.
"""

import argparse
import copy
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from torch import Tensor

from spear_hf import METHODS, Spear, SpearConfig, TTAMethod, get_spear_model, load_base_model, load_processor
from spear_hf.data.corruptions import CORRUPTIONS, corrupt_batch, sample_rng


def corrupted(data: Path, limit: int, preset: str, seed: int, cache: Path) -> tuple[dict[str, Tensor], Tensor]:
    """corruption -> (N, H, W, 3) uint8 images at severity 5, and the labels; made once and kept in `cache`."""
    if not cache.exists():
        order = torch.randperm(Dataset.from_parquet(str(data)).num_rows, generator=torch.Generator().manual_seed(seed))
        rows: Any = Dataset.from_parquet(str(data)).select(order[:limit].tolist()).with_format("numpy")
        pixels = [row["image"] if row["image"].ndim == 3 else row["image"][..., None].repeat(3, -1) for row in rows]
        images = torch.stack([torch.from_numpy(p.copy()) for p in pixels])
        made = {
            name: torch.cat(
                [
                    corrupt_batch(part, name, 5, [sample_rng(seed, preset, name, 5, int(i)) for i in ids], preset)
                    for part, ids in zip(images.split(256), order[:limit].split(256), strict=True)
                ]
            )
            for name in CORRUPTIONS
        }
        cache.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"images": made, "labels": torch.tensor([int(row["label"]) for row in rows])}, cache)
    kept = torch.load(cache)
    return kept["images"], kept["labels"]


def errors(
    method: TTAMethod, sets: dict[str, Tensor], labels: Tensor, processor: Any, batch_size: int, continual: bool
) -> dict[str, float]:
    """corruption -> online error in percent of a new method, which is reset between corruptions unless `continual`."""
    found = {}
    for name, images in sets.items():
        if not continual:
            method.reset()
        parts = zip(images.split(batch_size), labels.split(batch_size), strict=True)
        wrong = sum(int((method.step(processor(x)).argmax(1) != y).sum()) for x, y in parts)
        found[name] = round(100 * wrong / len(labels), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="JSON lines, one for each trial")
    parser.add_argument("--sweep", default="{}", help="JSON: SpearConfig field -> list of values; their product is run")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[4, 16, 256])
    parser.add_argument("--continual", action="store_true", help="never reset")
    parser.add_argument("--limit", type=int, default=2048)
    parser.add_argument("--preset", default="cifar")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    base = load_base_model(args.model, checkpoint=args.checkpoint)
    processor = load_processor(base)
    cache = args.output.with_name(f"{args.data.stem}_{args.limit}_{args.preset}_{args.seed}.pt")
    sets, labels = corrupted(args.data, args.limit, args.preset, args.seed, cache)
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    done = [{"continual": False} | json.loads(line) for line in lines]

    def run(name: str, settings: dict[str, Any], batch_size: int) -> None:
        key = {"method": name, "settings": settings, "batch_size": batch_size, "continual": args.continual}
        if any(all(trial[k] == v for k, v in key.items()) for trial in done):
            return
        own = copy.deepcopy(base)
        if name == "spear":
            method: TTAMethod = Spear(get_spear_model(own, SpearConfig.from_dict(settings)))
        else:
            method = METHODS[name](own, **settings)
        trial = key | {"error": errors(method, sets, labels, processor, batch_size, args.continual)}
        trial["mean"] = round(sum(trial["error"].values()) / len(trial["error"]), 3)
        done.append(trial)
        with args.output.open("a") as file:
            file.write(json.dumps(trial) + "\n")
        print(f"{name} {settings} batch {batch_size}: {trial['mean']:.2f}", flush=True)

    run("source", {}, 256)
    sweep = json.loads(args.sweep)
    for batch_size in args.batch_sizes:
        run("bn_adapt", {}, batch_size)
        for values in itertools.product(*sweep.values()):
            run("spear", dict(zip(sweep, values, strict=True)), batch_size)
    show([trial for trial in done if trial["continual"] == args.continual])


def show(trials: list[dict[str, Any]]) -> None:
    """One row for each configuration, a column for each batch size."""
    sizes = sorted({t["batch_size"] for t in trials if t["method"] != "source"})
    source = next(t for t in trials if t["method"] == "source")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for t in trials:
        if t["method"] != "source":
            rows.setdefault(f"{t['method']} {json.dumps(t['settings'])}", {})[t["batch_size"]] = t
    table = Table(title=f"held-out error in %, source {source['mean']:.2f}")
    for name in ("setting", *(f"{what} {size}" for size in sizes for what in ("batch", "worst"))):
        table.add_column(name, overflow="fold")

    def overall(row: dict[int, dict[str, Any]]) -> float:
        return sum(t["mean"] for t in row.values()) / len(row) - 1000 * len(row)

    for setting, row in sorted(rows.items(), key=lambda item: overall(item[1])):
        cells = []
        for size in sizes:
            trial = row.get(size)
            rise = max(e - source["error"][c] for c, e in trial["error"].items()) if trial else 0.0
            cells += [f"{trial['mean']:.2f}", f"{rise:+.1f}"] if trial else ["", ""]
        table.add_row(setting, *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
