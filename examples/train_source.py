"""Train the two embedded source models on Fashion-MNIST, on a laptop CPU.

    python examples/train_source.py --arch resnet --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/resnet
    python examples/train_source.py --arch vit --epochs 16 --data FASHION_MNIST_FOLDER --output runs/vit
    python examples/train_source.py --arch vit --resume runs/vit --learning-rate 0.0015 --seed 1 \\
        --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/vit
    python examples/train_source.py --export --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/test.parquet

The folder holds the four original files (train-images-idx3-ubyte.gz and so on); Debian's package
`dataset-fashion-mnist` puts them into /usr/share/datasets/fashion-mnist. The first 55,000 training images are learned
from; the last 5,000 are never shown to the model and are what hyper-parameters are chosen on. No corruption is part of
the augmentation: the models meet noise, blur and fog for the first time at test time.
"""

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from PIL.Image import fromarray
from torch.nn import functional as F
from torchvision.transforms.v2.functional import resize
from transformers import (
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

NAMES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
CLASSES = NAMES.split(",")
MEAN, STD = [0.2860] * 3, [0.3530] * 3  # of the 55,000 training images
HELD_OUT = 5_000


def read_idx(path: Path) -> torch.Tensor:
    """The array in a gzipped IDX file (big-endian: two zero bytes, type, number of dimensions, sizes, data)."""
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy())


def build(arch: str) -> tuple[PreTrainedModel, int]:
    """An untrained classifier with ten named classes, and the image side it expects."""
    labels = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: i for i, name in enumerate(CLASSES)}}
    if arch == "resnet":
        widths = {"embedding_size": 24, "hidden_sizes": [24, 48, 96, 192], "depths": [2, 2, 2, 2]}
        return ResNetForImageClassification(ResNetConfig(layer_type="basic", **widths, **labels)), 64
    size = {"image_size": 28, "patch_size": 7, "hidden_size": 80, "intermediate_size": 320}
    blocks = {"num_hidden_layers": 12, "num_attention_heads": 5, "initializer_range": 0.08}
    return ViTForImageClassification(ViTConfig(**size, **blocks, **labels)), 28


def prepare(images: torch.Tensor, side: int, *, augment: bool) -> torch.Tensor:
    """(B, 28, 28) uint8 to the (B, 3, side, side) float tensor that the saved image processor makes."""
    x = images.unsqueeze(1)
    if augment:
        x = F.pad(x, (2, 2, 2, 2))
        top, left = (int(v) for v in torch.randint(0, 5, (2,)))
        x = x[:, :, top : top + 28, left : left + 28]
        flip = torch.rand(len(x)) < 0.5
        x[flip] = x[flip].flip(-1)
    x = resize(x, [side, side]) if side != 28 else x
    return ((x.float() / 255 - MEAN[0]) / STD[0]).expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def error(model: PreTrainedModel, images: torch.Tensor, labels: torch.Tensor, side: int) -> float:
    """Classification error in percent."""
    model.eval()
    wrong = sum(
        int((model(prepare(x, side, augment=False)).logits.argmax(1) != y).sum())
        for x, y in zip(images.split(500), labels.split(500), strict=True)
    )
    return 100 * wrong / len(labels)


def export(data: Path, output: Path, split: str) -> None:
    """One parquet of PNG images and named labels: the 10,000 test images, or the 5,000 held-out training images."""
    stem, first = ("t10k", 0) if split == "test" else ("train", -HELD_OUT)
    images, labels = (read_idx(data / f"{stem}-{kind}-ubyte.gz")[first:] for kind in ("images-idx3", "labels-idx1"))
    features = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    rows = {"image": [fromarray(image) for image in images.numpy()], "label": labels.tolist()}
    Dataset.from_dict(rows, features=features).to_parquet(output)
    print(f"{len(labels):,} {split} images in {output}, {output.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--arch", choices=["resnet", "vit"], help="train this model")
    what.add_argument(
        "--export", choices=["test", "held_out"], nargs="?", const="test", help="write images as a parquet"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with the four Fashion-MNIST files")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="go on from this folder's model, with a new learning-rate cycle")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--learning-rate", type=float, help="peak; default 0.2 (SGD) for the ResNet, 0.002 (AdamW) for the ViT"
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.export:
        export(args.data, args.output, args.export)
    else:
        train(args)


def train(args: argparse.Namespace) -> None:
    """Learn from 55,000 images, report the error on the other 5,000 after each epoch, save model and processor."""
    torch.manual_seed(args.seed)
    images, labels = (read_idx(args.data / f"train-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    test_images, test_labels = (
        read_idx(args.data / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")
    )
    labels, test_labels = labels.long(), test_labels.long()
    learn, held_out = slice(0, len(images) - HELD_OUT), slice(len(images) - HELD_OUT, None)

    model, side = build(args.arch)
    if args.resume:
        model = type(model).from_pretrained(args.resume)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    steps = args.epochs * -(-len(labels[learn]) // args.batch_size)
    if args.arch == "resnet":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
        peak = args.learning_rate or 0.2
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
        peak = args.learning_rate or 2e-3
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak, total_steps=steps, pct_start=0.1 if args.arch == "vit" else 0.2
    )
    started = time.time()
    for epoch in range(args.epochs):
        model.train()
        for index in torch.randperm(len(labels[learn])).split(args.batch_size):
            logits = model(prepare(images[index], side, augment=True)).logits
            loss = F.cross_entropy(logits, labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        held = error(model, images[held_out], labels[held_out], side)
        took = time.time() - started
        print(
            f"epoch {epoch + 1}/{args.epochs}  loss {loss.item():.3f}  held-out error {held:.2f} %  {took:.0f} s",
            flush=True,
        )

    model.eval().save_pretrained(args.output)
    ViTImageProcessor(size={"height": side, "width": side}, image_mean=MEAN, image_std=STD).save_pretrained(args.output)
    before = json.loads((args.resume / "training.json").read_text())["epochs"] if args.resume else []
    report = {
        "arch": args.arch,
        "parameters": model.num_parameters(),
        "epochs": [*before, args.epochs],
        "seed": args.seed,
    }
    report |= {"test_error": error(model, test_images, test_labels, side), "held_out_error": held}
    (args.output / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(report)


if __name__ == "__main__":
    main()
