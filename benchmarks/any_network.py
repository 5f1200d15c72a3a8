"""One configuration on networks that nobody tuned it for: what learning adds, network by network.

    python benchmarks/any_network.py --data FOLDER [--trained WEIGHTS_FOLDER] [--networks resnet20 vit ...]

FOLDER holds cifar10/test.parquet, imagenet_sample/train_1000.parquet and weights/, as for benchmarks/real_data.py;
WEIGHTS_FOLDER is what benchmarks/train_networks.py wrote. The embedded networks need neither. Six corruptions at
severity 5, and the images as they are, reset before each unless --continual; the first half of each test set is
reported, since the defaults were chosen on the other. A cell is the mean error over the six, and the clean error.
"statistics" is the default without learning (learning_rate 0): mixed and remembered statistics, domain detection and
shares of alpha. Each row is kept in --output, and a run that is stopped goes on with the next.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from datasets import Dataset
from PIL.Image import Image
from real_data import ResNet20
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor, nn
from train_networks import MEAN, NETWORKS, STD, load

from spear_hf import Guard, GuardPolicy, Spear, SpearConfig, get_spear_model, load_base_model, load_processor
from spear_hf.data.corruptions import corrupt_batch, sample_rng
from spear_hf.utils.batch import logits_of

Processor = Callable[[Tensor], Tensor]
CORRUPTIONS = ("gaussian_noise", "glass_blur", "motion_blur", "fog", "contrast", "pixelate")
EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONFIGS: dict[str, SpearConfig | None] = {
    "source": None,
    "statistics": SpearConfig(learning_rate=0.0),
    "SpearConfig.paper()": SpearConfig.paper(),
    "SpearConfig()": SpearConfig(),
    "four views": SpearConfig(tta_views=4),
}


def network(name: str, data: Path, trained: Path | None) -> tuple[nn.Module, Path, Processor]:
    """The network, its test images, and what makes its input of them."""
    cifar = data / "cifar10" / "test.parquet"
    if name in ("resnet20", "resnet56"):
        net = ResNet20(3 if name == "resnet20" else 9)
        net.load_state_dict(load_file(data / "weights" / f"cifar_{name}_akamaster.safetensors"))
        return net.eval(), cifar, normalised(*IMAGENET)
    if name == "resnet26":
        import spear_hf.backbones.cifar  # noqa: F401 (registers it)

        net = timm.create_model("cifar_resnet26")
        net.load_state_dict(load_file(data / "weights" / "cifar_resnet26.safetensors"))
        return net.eval(), cifar, normalised(MEAN, STD)
    if name.startswith("lite"):
        net = timm.create_model(f"tf_efficientnet_{name}")
        net.load_state_dict(load_file(data / "weights" / f"tf_efficientnet_{name}.safetensors"))
        half = (0.5, 0.5, 0.5)
        return net.eval(), data / "imagenet_sample" / "train_1000.parquet", normalised(half, half)
    if name in NETWORKS:
        if trained is None:
            raise SystemExit(f"{name} is trained by benchmarks/train_networks.py; give its folder as --trained")
        return load(name, trained), cifar, normalised(MEAN, STD)
    base = load_base_model(str(EMBEDDED / name))
    return base, EMBEDDED / "test.parquet", load_processor(base)


def images(path: Path, count: int, half: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """(N, H, W, 3) uint8 of the first half of the rows (or the second, 1), drawn once, their labels and numbers."""
    data = Dataset.from_parquet(str(path))
    middle = len(data) // 2
    numbers = (np.random.default_rng(half).permutation(middle)[:count] + half * middle).tolist()
    rows: Any = data.select(numbers)
    pixels = [np.asarray(cropped(row["image"]) if isinstance(row["image"], Image) else row["image"]) for row in rows]
    pixels = [each.reshape(*each.shape[:2], -1).astype(np.uint8) for each in pixels]
    x = torch.from_numpy(np.stack([p.repeat(3, -1) if p.shape[-1] == 1 else p for p in pixels]))
    return x, torch.tensor([int(row["label"]) for row in rows]), numbers


def cropped(image: Image) -> Image:
    """Images of more than 64 pixels as ImageNet is read: the shorter side 256, and 224 of the centre."""
    if min(image.size) <= 64:
        return image
    image = image.convert("RGB")
    width, height = (round(side * 256 / min(image.size)) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    return image.resize((width, height)).crop((left, top, left + 224, top + 224))


def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Processor:
    """(B, H, W, 3) uint8 -> what the network takes."""
    m, s = (torch.tensor(each).view(3, 1, 1) for each in (mean, std))
    return lambda x: (x.permute(0, 3, 1, 2).float() / 255 - m) / s


def errors(
    net: nn.Module,
    config: SpearConfig | None,
    sets: dict[str, Tensor],
    labels: Tensor,
    processor: Processor,
    batch: int,
    continual: bool,
    policy: GuardPolicy | None = None,
) -> dict[str, float]:
    """corruption -> error in percent, online; with a policy under a Guard."""
    tta: Any = None if config is None else Spear(get_spear_model(net, config))
    tta = tta if policy is None else Guard(tta, policy)
    found = {}
    for name, x in sets.items():
        if tta is not None and not continual:
            tta.reset()
        wrong = 0
        for part, y in zip(x.split(batch), labels.split(batch), strict=True):
            with torch.no_grad():
                answer = logits_of(net(processor(part))) if tta is None else tta.step(processor(part))
            wrong += int((answer.argmax(1) != y).sum())
        found[name] = round(100 * wrong / len(labels), 2)
    if tta is not None:
        tta.unload()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--networks", nargs="+", default=["resnet", "vit", "resnet20", "resnet26", "resnet56"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--configs", nargs="+", choices=list(CONFIGS), default=list(CONFIGS)[:4])
    parser.add_argument("--continual", action="store_true", help="never reset")
    parser.add_argument("--limit", type=int, default=1024)
    parser.add_argument("--output", type=Path, default=Path("runs/any_network.jsonl"))
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    done = {tuple(row["key"]): row for row in kept}
    table = Table("network", "batch", *args.configs, title="error in %: mean over six corruptions, severity 5 / clean")
    for name in args.networks:
        sets: dict[str, Tensor] = {}
        for batch in args.batch_sizes:
            cells = []
            for label in args.configs:
                key = (name, batch if CONFIGS[label] else 0, label, args.limit, args.continual)
                if key not in done:
                    net, path, processor = network(name, args.data, args.trained)
                    x, labels, numbers = images(path, args.limit)
                    preset = "imagenet" if name.startswith("lite") else "cifar"
                    for c in CORRUPTIONS if not sets else ():
                        rngs = [sample_rng(0, preset, c, 5, i) for i in numbers]
                        sets[c] = corrupt_batch(x, c, 5, rngs, preset)
                    sets["clean"] = x
                    found = errors(net, CONFIGS[label], sets, labels, processor, batch, args.continual)
                    mean = sum(found[c] for c in CORRUPTIONS) / len(CORRUPTIONS)
                    done[key] = {"key": key, "mean": round(mean, 2), "errors": found}
                    with args.output.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
                cells.append(f"{done[key]['mean']:.2f} / {done[key]['errors']['clean']:.2f}")
            table.add_row(name, str(batch), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
