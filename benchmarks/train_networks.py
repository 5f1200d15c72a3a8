"""Train four classifiers for 32 x 32 images that no default of this project was chosen on, on CIFAR-10.

    python benchmarks/train_networks.py --data CIFAR10_FOLDER --output WEIGHTS_FOLDER --minutes 60

CIFAR10_FOLDER holds train.parquet and test.parquet (columns image and label). Each network is trained for `--minutes`
of wall time and written to WEIGHTS_FOLDER/NAME.safetensors, with its test error in NAME.json. `load(name, folder)`
gives one with its weights; all take images normalised by MEAN and STD.

- resnet26_gn: a narrow ResNet-26 of four stages with GroupNorm: no batch statistics.
- nf_resnet26: no normalisation at all; timm's scaled weight standardisation.
- convnext_cifar: LayerNorm and depth-wise convolutions.
- vit_cifar: isotropic, patches of 4 x 4.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from timm.layers import GroupNorm
from timm.models.convnext import ConvNeXt
from timm.models.nfnet import NfCfg, NormFreeNet
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def resnet26_gn() -> nn.Module:
    norm = partial(GroupNorm, num_groups=8)
    net = ResNet(BasicBlock, (3, 3, 3, 3), num_classes=10, channels=(16, 32, 64, 128), norm_layer=norm)
    net.conv1 = nn.Conv2d(3, 64, 3, 2, 1, bias=False)
    net.maxpool = nn.Identity()
    return net


def nf_resnet26() -> nn.Module:
    cfg = NfCfg(depths=(2, 2, 2, 2), channels=(64, 128, 192, 256), stem_type="3x3", stem_chs=32, num_features=256)
    return NormFreeNet(cfg, num_classes=10)


def convnext_cifar() -> nn.Module:
    return ConvNeXt(num_classes=10, depths=(2, 2, 4, 2), dims=(32, 64, 128, 192), patch_size=2)


def vit_cifar() -> nn.Module:
    return VisionTransformer(img_size=32, patch_size=4, embed_dim=96, depth=6, num_heads=3, num_classes=10)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "resnet26_gn": (resnet26_gn, 2e-3),
    "nf_resnet26": (nf_resnet26, 1e-3),
    "convnext_cifar": (convnext_cifar, 2e-3),
    "vit_cifar": (vit_cifar, 1e-3),
}
"""name -> its factory, and the highest learning rate of its training."""


def load(name: str, folder: Path) -> nn.Module:
    """A trained network in evaluation mode."""
    net = NETWORKS[name][0]()
    net.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return net.eval()


def pixels(path: Path) -> tuple[Tensor, Tensor]:
    """(N, 3, 32, 32) uint8 and (N,)."""
    rows = Dataset.from_parquet(str(path)).with_format("numpy")
    images = np.stack([row["image"] for row in tqdm(rows, desc=path.name, unit="image")])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(rows["label"][:])


def normalised(x: Tensor) -> Tensor:
    return (x.float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def augmented(x: Tensor) -> Tensor:
    """Each image mirrored or not, moved by up to 4 pixels."""
    flip = torch.rand(len(x)) < 0.5
    x = torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x)
    padded = F.pad(x, (4, 4, 4, 4))
    left, top = torch.randint(0, 9, (2, len(x), 1))
    rows, columns = (top + torch.arange(32))[:, None, :, None], (left + torch.arange(32))[:, None, None, :]
    return padded[torch.arange(len(x)).view(-1, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1), rows, columns]


def train(net: nn.Module, images: Tensor, labels: Tensor, minutes: float, top: float, batch: int = 128) -> float:
    """AdamW, one cycle of the learning rate over `minutes`; the number of epochs that they were enough for."""
    decayed = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0)
    start, seen = time.monotonic(), 0
    net.train()
    with tqdm(total=round(60 * minutes), unit="s") as bar:
        while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
            for group in optimizer.param_groups:
                group["lr"] = top * min(done / 0.1, 0.5 * (1 + math.cos(math.pi * max(0.0, (done - 0.1) / 0.9))))
            rows = torch.randint(len(images), (batch,))
            loss = F.cross_entropy(net(normalised(augmented(images[rows]))), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            seen += batch
            bar.set_postfix(loss=f"{loss.item():.2f}", epoch=f"{seen / len(images):.1f}", refresh=False)
            bar.update(round(60 * minutes * done) - bar.n)
    net.eval()
    return seen / len(images)


@torch.no_grad()
def error(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    pairs = zip(images.split(250), labels.split(250), strict=True)
    return 100 * sum(int((net(normalised(x)).argmax(1) != y).sum()) for x, y in pairs) / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, for each network")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    (images, labels), (test, truth) = (pixels(args.data / f"{name}.parquet") for name in ("train", "test"))
    for name in args.networks:
        if (args.output / f"{name}.safetensors").exists():
            print(f"{name}: is there already")
            continue
        torch.manual_seed(0)
        factory, top = NETWORKS[name]
        net = factory()
        epochs = train(net, images, labels, args.minutes, top)
        facts = {"test_error": round(error(net, test, truth), 2), "epochs": round(epochs, 1), "minutes": args.minutes}
        save_file({k: v.contiguous() for k, v in net.state_dict().items()}, args.output / f"{name}.safetensors")
        (args.output / f"{name}.json").write_text(json.dumps(facts) + "\n")
        print(f"{name}: {facts}", flush=True)


if __name__ == "__main__":
    main()
