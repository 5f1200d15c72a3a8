"""SPeaR on real images and published weights: CIFAR-10-C with a ResNet-20, ImageNet-C with an EfficientNet-Lite0.

    python benchmarks/real_data.py cifar    --data FOLDER [--limit 2048] [--batch-sizes 16 256]
    python benchmarks/real_data.py imagenet --data FOLDER [--limit 500]  [--batch-sizes 16]

FOLDER holds cifar10/test.parquet and weights/cifar_resnet20_akamaster.safetensors (the ResNet-20 of
akamaster/pytorch_resnet_cifar10, BSD-2-Clause), or imagenet_sample/train_1000.parquet (one photograph for each class)
and weights/tf_efficientnet_lite0.safetensors (Apache-2.0). Severity 5, the 15 corruptions, reset before each.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf import Spear, SpearConfig, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.evaluate import evaluate
from spear_hf.methods import BnAdapt, Source


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


def cifar(folder: Path) -> tuple[nn.Module, Any, Path]:
    """ResNet-20, the ImageNet normalisation that it was trained with, and CIFAR-10's test images."""
    model = ResNet20()
    model.load_state_dict(load_file(folder / "weights" / "cifar_resnet20_akamaster.safetensors"))
    processor = load_processor(model, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=32)
    return model.eval(), processor, folder / "cifar10" / "test.parquet"


def imagenet(folder: Path) -> tuple[nn.Module, Any, Path]:
    """EfficientNet-Lite0 with its own preprocessing, and a photograph for each of ImageNet's classes."""
    model = load_base_model(
        "tf_efficientnet_lite0", checkpoint=folder / "weights" / "tf_efficientnet_lite0.safetensors"
    )
    return model, load_processor(model), folder / "imagenet_sample" / "train_1000.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["cifar", "imagenet"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="images of each corruption; all by default")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--corruptions", default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for one JSON report for each batch size")
    args = parser.parse_args()

    base, processor, images = {"cifar": cifar, "imagenet": imagenet}[args.which](args.data)
    config = SpearConfig()
    for batch_size in args.batch_sizes:
        stream = load_stream(
            str(images),
            corruptions=args.corruptions,
            batch_size=batch_size,
            limit=args.limit,
            seed=args.seed,
            processor=processor,
            preset=args.which,
        )
        methods = {
            "source": Source(copy.deepcopy(base)),
            "alpha only": BnAdapt(copy.deepcopy(base), config.alpha),
            "SPeaR": Spear(get_spear_model(copy.deepcopy(base), config)),
        }
        report = evaluate(methods, stream, provenance={"config": config.to_dict(), "processor": processor.describe()})
        Console().print(report.table(f"{args.which}, {type(base).__name__}, severity 5, batch {batch_size}"))
        if args.output:
            report.to_json(args.output / f"{args.which}_{batch_size}.json")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
