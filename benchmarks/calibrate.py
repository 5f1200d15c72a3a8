"""What `calibrate` gains on images and corruptions that it has not seen, network by network.

    python benchmarks/calibrate.py --data FOLDER [--networks resnet vit resnet20 ...]

FOLDER is that of benchmarks/any_network.py. Calibrated on clean images of the second half of each test set, under the
five corruptions of `TRIED_ON`; judged on images of the first half, under six others and as they are, by their labels.
A cell is the mean error over the six, and the clean error. Each row is kept in --output, and a run that is stopped goes
on with the next network. With --guard the default is also judged under a Guard, with GuardPolicy() and with the bounds
that were found, and with a learning rate at which it goes wrong.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from any_network import CORRUPTIONS, errors, images, network
from rich.console import Console
from rich.table import Table
from torch import Tensor

from spear_hf import Calibration, GuardPolicy, SpearConfig, load_processor
from spear_hf.data.corruptions import corrupt_batch, sample_rng

TOO_FAST = SpearConfig.paper(learning_rate=0.3)


def row(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What was chosen for a network, and the errors with and without it."""
    net, path, processor = network(name, args.data, None)
    pixels, _, _ = images(path, args.clean, half=1)
    black, white = (processor(pixels[:1] * 0 + value)[0, :, 0, 0] for value in (0, 255))
    std = 1 / (white - black)
    given = load_processor(None, mean=(-black * std).tolist(), std=std.tolist(), size=pixels.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        batches = [processor(part) for part in pixels.split(args.batch)]
        found = Calibration.of(net, batches, processor=given, limit=args.clean)
    for tried in found.tried:
        print(name, tried, flush=True)
    x, labels, numbers = images(path, args.limit)
    preset = "imagenet" if name.startswith("lite") else "cifar"
    sets: dict[str, Tensor] = {
        c: corrupt_batch(x, c, 5, [sample_rng(0, preset, c, 5, i) for i in numbers], preset) for c in CORRUPTIONS
    }
    sets["clean"] = x
    runs: dict[str, tuple[SpearConfig | None, GuardPolicy | None]] = {
        "source": (None, None),
        "SpearConfig()": (SpearConfig(), None),
        "calibrated": (found.config, None),
    }
    if args.guard:
        policies = {"GuardPolicy()": GuardPolicy(), "its bounds": found.policy}
        configs = {"SpearConfig()": SpearConfig(), "too fast": TOO_FAST}
        runs |= {f"{c}, {p}": (configs[c], policies[p]) for c in configs for p in policies}
        runs["too fast"] = TOO_FAST, None
    cells: dict[str, str] = {}
    for label, (config, policy) in runs.items():
        if label == "calibrated" and found.config == SpearConfig():
            cells[label] = cells["SpearConfig()"]
            continue
        wrong = errors(net, config, sets, labels, processor, args.batch, False, policy)
        mean = sum(wrong[c] for c in CORRUPTIONS) / len(CORRUPTIONS)
        cells[label] = f"{mean:.2f} / {wrong['clean']:.2f}"
        print(name, label, cells[label], flush=True)
    chosen = ", ".join(tried.name for tried in found.tried if tried.chosen) or "the default"
    bounds = f"{found.policy.max_entropy_rise:g}, {found.policy.max_collapse:g}"
    return {"network": name, "chosen": chosen, "bounds": bounds, "warning": found.warning or "", **cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["resnet", "vit", "resnet20", "resnet26", "resnet56"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--clean", type=int, default=256, help="clean images to calibrate on")
    parser.add_argument("--limit", type=int, default=256, help="images to judge by, under each corruption")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs/calibrate.jsonl"))
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    done = {found["network"]: found for found in map(json.loads, lines)}
    for name in args.networks:
        if name not in done:
            done[name] = row(name, args)
            with args.output.open("a") as file:
                file.write(json.dumps(done[name]) + "\n")
    shown = [done[name] for name in args.networks]
    table = Table(*shown[0], title="error in %: mean over six corruptions, severity 5 / clean")
    for found in shown:
        table.add_row(*map(str, found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
