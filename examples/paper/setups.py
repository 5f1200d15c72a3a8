"""On what the paper's tables are run: its own checkpoints and data, or what stands in for them where these are not.

Three worlds hold a setup for each column of the paper, where they have one: "paper" (checkpoints and corrupted images
by their names on the Hub, or where you have put them), "shared" (a folder of real images and weights) and "embedded"
(what comes with this repository).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spear_hf import load_base_model, load_processor, load_stream
from spear_hf.data.cached import cached
from spear_hf.data.processor import Processor, load_class_names
from spear_hf.errors import ConfigError

EMBEDDED = Path(__file__).resolve().parents[1] / "fashion_mnist"
BENCHMARKS = {  # column of the paper -> whose published hyper-parameters its methods have
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "imagenet": "imagenet",
    "vit": "imagenet_vit",
    "gn": "imagenet_vit",
    "nfnet": "imagenet",
}


@dataclass(frozen=True)
class Setup:
    """A model and images for one column of the paper.

    Args:
        title: for people.
        model: what `load_base_model` takes.
        images: what `load_stream` takes; images that are not corrupted already are corrupted here.
        clean: images without corruption, where `images` holds none.
        checkpoint: a .safetensors file for a model without weights of its own.
        missing: why it cannot be opened as it is, and what to give.
        label_column: of the images.
        preset: of the corruptions.
        size: side of the input in pixels, where it is not the model's own.
        config: fields of SpearConfig that this network needs.
        differs: what is not as in the paper; "" where model and images are its own.
        beside: whether the paper's figures are shown beside ours.
    """

    title: str
    model: str
    images: str
    clean: str | None = None
    checkpoint: str | None = None
    missing: str | None = None
    label_column: str = "auto"
    preset: str = "auto"
    size: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    differs: str = ""
    beside: bool = True


def paper(_: Path | None) -> dict[str, Setup]:
    """The paper's own; `--set cifar10.checkpoint=FILE` and the like fill in what nobody publishes."""
    c = "WNJXYK/TTA-ImageNet-C"
    return {
        "cifar10": Setup(
            "CIFAR-10-C, ResNet-26",
            "cifar_resnet26",
            "YashP54/cifar10-c",
            clean="uoft-cs/cifar10",
            missing="the paper's ResNet-26 was trained by its authors and is not published: "
            "--set cifar10.checkpoint=FILE.safetensors",
            differs="another training of the same architecture",
        ),
        "cifar100": Setup(
            "CIFAR-100-C, ResNeXt-29 (AugMix)",
            "cifar_resnext29_32x4d",
            "uoft-cs/cifar100",
            missing="convert RobustBench's Hendrycks2020AugMix_ResNeXt (cifar100, corruptions) to safetensors and give "
            "--set cifar100.checkpoint=FILE.safetensors, and the arrays of CIFAR-100-C (zenodo.org/records/3555552) "
            "with --set cifar100.images=FOLDER; without them the test images are corrupted here",
            label_column="fine_label",
            preset="cifar",
        ),
        "imagenet": Setup("ImageNet-C, ResNet-50", "timm/resnet50.tv_in1k", c),
        "vit": Setup("ImageNet-C, ViT-B/16", "timm/vit_base_patch16_224.augreg_in21k_ft_in1k", c),
        "gn": Setup("ImageNet-C, ResNet-50-GN", "timm/resnetv2_50d_gn.ah_in1k", c),
        "nfnet": Setup(
            "ImageNet-C, NFNet-F0", "timm/dm_nfnet_f0.dm_in1k", c, size=224, config={"stem": "feature_info"}
        ),
    }


def shared(folder: Path | None) -> dict[str, Setup]:
    """CIFAR-10 and a ResNet-26, a sample of ImageNet and an EfficientNet-Lite0, in a folder."""
    root = Path(folder or "shared")
    return {
        "cifar10": Setup(
            "CIFAR-10-C, ResNet-26",
            "cifar_resnet26",
            str(root / "cifar10" / "test.parquet"),
            checkpoint=str(root / "weights" / "cifar_resnet26.safetensors"),
            preset="cifar",
            differs="the same architecture, trained for 16 epochs (clean error 11.8 %, the paper's about 5.5 %); "
            "a JPEG copy of CIFAR-10, corrupted here",
        ),
        "imagenet": Setup(
            "ImageNet sample, EfficientNet-Lite0",
            "tf_efficientnet_lite0",
            str(root / "imagenet_sample" / "train_1000.parquet"),
            checkpoint=str(root / "weights" / "tf_efficientnet_lite0.safetensors"),
            preset="imagenet",
            differs="EfficientNet-Lite0 and a training photograph of each class, corrupted here",
            beside=False,
        ),
    }


def embedded(_: Path | None) -> dict[str, Setup]:
    """The two embedded networks on Fashion-MNIST."""
    images = str(EMBEDDED / "test.parquet")
    networks = {"cifar10": ("ResNet", "resnet"), "vit": ("ViT", "vit")}
    return {
        key: Setup(
            f"Fashion-MNIST-C, {name}",
            str(EMBEDDED / folder),
            images,
            preset="cifar",
            differs="a small network on Fashion-MNIST, corrupted here",
            beside=False,
        )
        for key, (name, folder) in networks.items()
    }


WORLDS: dict[str, Callable[[Path | None], dict[str, Setup]]] = {"paper": paper, "shared": shared, "embedded": embedded}


def make_setups(world: str, folder: Path | None = None, changes: Iterable[str] = ()) -> dict[str, Setup]:
    """The setups of a world, with "KEY.FIELD=VALUE" in place of what it has.

    Raises:
        ConfigError: a change of another form.
    """
    setups = WORLDS[world](folder)
    for change in changes:
        place, equals, value = change.partition("=")
        key, _, name = place.partition(".")
        if not equals or key not in setups or name not in ("model", "images", "clean", "checkpoint"):
            raise ConfigError(
                f"--set {change} is not KEY.FIELD=VALUE; KEY is one of {', '.join(setups)}, "
                "FIELD is model, images, clean or checkpoint"
            )
        setups[key] = replace(setups[key], **{name: value})
    return setups


class Opened(NamedTuple):
    """A setup that is there: the base, and a stream of it for each batch size."""

    base: nn.Module
    processor: Processor
    stream: Callable[..., Any]
    """(batch_size, protocol="single", clean=False, images=None) -> a Stream"""

    def clean_images(self, count: int) -> Tensor:
        """(count, C, H, W) clean images as the model takes them; DataError where the setup has none."""
        return torch.cat([batch["pixel_values"] for batch in self.stream(64, clean=True, images=count)])


def open_setup(setup: Setup, *, limit: int | None, seed: int, cache: Path, device: Any) -> Opened:
    """Load the model; streams are opened when they are asked for, and images that are corrupted here kept in `cache`.

    Raises:
        SpearError: the model or the images cannot be had.
    """
    if setup.missing and setup.checkpoint is None:
        raise ConfigError(setup.missing)
    base = load_base_model(setup.model, checkpoint=setup.checkpoint).to(device)
    processor, class_names = load_processor(base), load_class_names(base)
    if setup.size is not None:
        processor = load_processor(None, mean=processor.mean, std=processor.std, size=setup.size)

    def stream(batch_size: int, protocol: str = "single", *, clean: bool = False, images: int | None = None) -> Any:
        made = load_stream(
            setup.clean or setup.images if clean else setup.images,
            corruptions="clean" if clean else "all",
            protocol=protocol,
            batch_size=batch_size,
            limit=images or limit,
            seed=seed,
            processor=processor,
            class_names=class_names,
            label_column=setup.label_column,
            preset="auto" if clean and setup.clean else setup.preset,
        )
        return made if made.recipe.preset is None else cached(made, cache)  # what is not corrupted here is only read

    return Opened(base, processor, stream)
