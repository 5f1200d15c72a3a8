"""Every method on real images and published weights: CIFAR-10-C with ResNets, ImageNet-C with an EfficientNet-Lite0.

    python benchmarks/real_data.py cifar    --data FOLDER [--limit 2048] [--batch-sizes 16 256]
    python benchmarks/real_data.py cifar26  --data FOLDER --methods all --batch-sizes 4 16 256 --published
    python benchmarks/real_data.py cifar26  --data FOLDER --methods all --batch-sizes 4 16 256 --protocol continual
    python benchmarks/real_data.py imagenet --data FOLDER [--limit 500]  [--batch-sizes 16]

FOLDER holds cifar10/test.parquet with weights/cifar_resnet20_akamaster.safetensors ("cifar": the ResNet-20 of
akamaster/pytorch_resnet_cifar10, BSD-2-Clause) or weights/cifar_resnet26.safetensors ("cifar26": the paper's
architecture), or imagenet_sample/train_1000.parquet (one photograph for each class) with
weights/tf_efficientnet_lite0.safetensors (Apache-2.0). Severity 5, the 15 corruptions. Corrupted images are made once
and kept in --cache. Every finished cell (a method at a batch size) is kept in --output, and an interrupted run
continues with the next one.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf import load_base_model, load_processor, load_stream
from spear_hf.data.cached import cached
from spear_hf.evaluation.compare import compare
from spear_hf.evaluation.method_spec import AS_PUBLISHED, MethodSpec, chosen_settings, method_specs
from spear_hf.evaluation.plots import plot_parameters


class Block(nn.Module):
    """Two 3x3 convolutions; the shortcut has no parameters: stride-2 subsampling, zero channels on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet20(nn.Module):
    """The CIFAR ResNet of He et al. 2016 with 3n = 9 blocks of widths 16, 32, 64."""

    def __init__(self, n: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(i, o, s), *(Block(o, o, 1) for _ in range(n - 1))) for i, o, s in widths
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def cifar10(folder: Path, part: str) -> Dataset:
    """The last 2,000 test images, to choose settings on, or the others, to report results on."""
    images = Dataset.from_parquet(str(folder / "cifar10" / "test.parquet"))
    first = images.num_rows - 2000
    return images.select(range(first, images.num_rows) if part == "held_out" else range(first))


def cifar(folder: Path, part: str) -> tuple[nn.Module, Any, Any]:
    """ResNet-20 with the ImageNet normalisation of its training, and CIFAR-10's test images."""
    model = ResNet20()
    model.load_state_dict(load_file(folder / "weights" / "cifar_resnet20_akamaster.safetensors"))
    processor = load_processor(model, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=32)
    return model.eval(), processor, cifar10(folder, part)


def cifar26(folder: Path, part: str) -> tuple[nn.Module, Any, Any]:
    """The paper's ResNet-26, trained on CIFAR-10, with its test images."""
    model = load_base_model("cifar_resnet26", checkpoint=folder / "weights" / "cifar_resnet26.safetensors")
    return model, load_processor(model), cifar10(folder, part)


def imagenet(folder: Path, part: str) -> tuple[nn.Module, Any, Any]:
    """EfficientNet-Lite0 with its own preprocessing, and a photograph for each of ImageNet's classes."""
    if part == "held_out":
        raise SystemExit("the ImageNet sample has no held-out part: its settings are CIFAR's or the defaults")
    model = load_base_model(
        "tf_efficientnet_lite0", checkpoint=folder / "weights" / "tf_efficientnet_lite0.safetensors"
    )
    return model, load_processor(model), str(folder / "imagenet_sample" / "train_1000.parquet")


WHICH = {  # how to load it, whose published hyper-parameters apply, and images of the source for methods that need some
    "cifar": (cifar, "cifar10", ("cifar10/train.parquet", 2000)),
    "cifar26": (cifar26, "cifar10", ("cifar10/train.parquet", 2000)),
    "imagenet": (imagenet, "imagenet", ("imagenet_sample/train_1000.parquet", 500)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=list(WHICH))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--methods", default="source,bn_adapt,spear", help='names with commas, or "all"')
    parser.add_argument("--settings", type=Path, help="a JSON file of hyper-parameters by label")
    parser.add_argument("--published", action="store_true", help="rivals as published, and SPeaR as spear_paper too")
    parser.add_argument(
        "--part", choices=["reported", "held_out"], default="reported", help="held_out: to choose settings"
    )
    parser.add_argument("--protocol", choices=["single", "continual"], default="single")
    parser.add_argument("--limit", type=int, default=None, help="images of each corruption; all by default")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--corruptions", default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    parser.add_argument("--output", type=Path, help="default: runs/real_data/WHICH-PROTOCOL-LIMIT-SEED")
    args = parser.parse_args()

    load, benchmark, (source, count) = WHICH[args.which]
    base, processor, images = load(args.data, args.part)
    contenders = chosen(args, benchmark)
    shared: dict[str, Any] = {"processor": processor, "seed": args.seed, "shuffle": True}
    preset = "imagenet" if args.which == "imagenet" else "cifar"

    def stream(batch_size: int) -> Any:
        what = {"corruptions": args.corruptions, "protocol": args.protocol, "limit": args.limit, "preset": preset}
        return cached(load_stream(images, batch_size=batch_size, **what, **shared), args.cache)

    resources: dict[str, Any] = {"mean": processor.mean, "std": processor.std}
    if any(contender.needs_source for contender in contenders.values()):
        clean = load_stream(str(args.data / source), corruptions="clean", limit=count, **shared)
        resources["source_images"] = torch.cat([batch["pixel_values"] for batch in clean])
    output = (
        args.output
        or Path("runs/real_data") / f"{args.which}-{args.part}-{args.protocol}-{args.limit or 'all'}-{args.seed}"
    )
    found = compare(
        base.to(args.device),
        stream,
        contenders,
        batch_sizes=args.batch_sizes,
        folder=output / "cells",
        resources=resources,
        seed=args.seed,
        provenance={"model": f"{args.which}: {type(base).__name__}"},
    )
    show(found, f"{args.which}, {type(base).__name__}, severity 5, {args.protocol}", output)


def chosen(args: argparse.Namespace, benchmark: str) -> dict[str, MethodSpec]:
    """The methods of --methods; --settings override --published, which override the defaults."""
    paper = {"spear_paper": AS_PUBLISHED} if args.published else {}
    settings = chosen_settings(benchmark if args.published else None, args.settings)
    return method_specs(args.methods, paper | settings)


def show(found: Any, title: str, output: Path) -> None:
    """Print the tables, and write tables, comparison and figure to the folder."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / "tables.txt").open("w") as file:
        for console in (Console(width=None if sys.stdout.isatty() else 200), Console(file=file, width=200)):
            for table in found.tables(title):
                console.print(table)
            for line in found.refusal_lines():
                console.print(line, highlight=False, markup=False)
    found.to_json(output / "comparison.json")
    plot_parameters(found, output / "parameters.png", title)
    print(f"saved {output}")


if __name__ == "__main__":
    main()
