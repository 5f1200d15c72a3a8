"""Train the two embedded source models on Fashion-MNIST, on a laptop CPU.

    python examples/train_source.py --arch resnet --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/resnet
    python examples/train_source.py --arch vit --epochs 16 --data FASHION_MNIST_FOLDER --output runs/vit
    python examples/train_source.py --arch vit --resume runs/vit --learning-rate 0.0015 --seed 1 \\
        --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/vit
    python examples/train_source.py --export test \\
        --data FASHION_MNIST_FOLDER --output examples/fashion_mnist/test.parquet

The folder holds the four original files (train-images-idx3-ubyte.gz and so on); Debian's package
`dataset-fashion-mnist` puts them into /usr/share/datasets/fashion-mnist. The model is trained on the first 55,000
training images; the last 5,000 are held out to choose hyper-parameters. The augmentation has no corruption, so noise,
blur and fog are new to the model at test time.
"""

import gzip
import json
import time
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer
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

from spear_hf.cli import script

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


def write_images(data: Path, output: Path, split: str) -> None:
    """One parquet of PNG images and named labels: the 10,000 test images, or the 5,000 held-out training images."""
    stem, first = ("t10k", 0) if split == "test" else ("train", -HELD_OUT)
    images, labels = (read_idx(data / f"{stem}-{kind}-ubyte.gz")[first:] for kind in ("images-idx3", "labels-idx1"))
    features = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    rows = {"image": [fromarray(image) for image in images.numpy()], "label": labels.tolist()}
    Dataset.from_dict(rows, features=features).to_parquet(output)
    print(f"{len(labels):,} {split} images in {output}, {output.stat().st_size / 1e6:.1f} MB")


def main(
    data: Annotated[Path, typer.Option(help="The folder with the four Fashion-MNIST files.")],
    output: Annotated[Path, typer.Option(help="The folder of the model, or the parquet file of --export.")],
    arch: Annotated[Literal["resnet", "vit"] | None, typer.Option(help="Train this model.")] = None,
    export: Annotated[Literal["test", "held_out"] | None, typer.Option(help="Write these images instead.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue from the model in this folder, with a new learning-rate cycle.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the 55,000 images.")] = 12,
    learning_rate: Annotated[
        float | None, typer.Option(help="The peak; default 0.2 (SGD) for the ResNet, 0.002 (AdamW) for the ViT.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the order and the augmentation.")] = 0,
) -> None:
    if (arch is None) == (export is None):
        raise typer.BadParameter("give one of --arch and --export")
    if export is not None:
        write_images(data, output, export)
    elif arch is not None:
        train(arch, data, output, resume, epochs, learning_rate, batch_size, seed)


def train(
    arch: str,
    data: Path,
    output: Path,
    resume: Path | None,
    epochs: int,
    learning_rate: float | None,
    batch_size: int,
    seed: int,
) -> None:
    """Train on 55,000 images, print the error on the other 5,000 after each epoch, save model and processor."""
    torch.manual_seed(seed)
    images, labels = (read_idx(data / f"train-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    test_images, test_labels = (read_idx(data / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    labels, test_labels = labels.long(), test_labels.long()
    learn, held_out = slice(0, len(images) - HELD_OUT), slice(len(images) - HELD_OUT, None)

    model, side = build(arch)
    if resume:
        model = type(model).from_pretrained(resume)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    steps = epochs * -(-len(labels[learn]) // batch_size)
    if arch == "resnet":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
        peak = learning_rate or 0.2
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
        peak = learning_rate or 2e-3
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak, total_steps=steps, pct_start=0.1 if arch == "vit" else 0.2
    )
    started = time.time()
    for epoch in range(epochs):
        model.train()
        for index in torch.randperm(len(labels[learn])).split(batch_size):
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
            f"epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}  held-out error {held:.2f} %  {took:.0f} s",
            flush=True,
        )

    model.eval().save_pretrained(output)
    ViTImageProcessor(size={"height": side, "width": side}, image_mean=MEAN, image_std=STD).save_pretrained(output)
    before = json.loads((resume / "training.json").read_text())["epochs"] if resume else []
    report = {
        "arch": arch,
        "parameters": model.num_parameters(),
        "epochs": [*before, epochs],
        "seed": seed,
    }
    report |= {"test_error": error(model, test_images, test_labels, side), "held_out_error": held}
    (output / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(report)


app = script(main, __doc__)

if __name__ == "__main__":
    app()
