"""The models and images of the paper's tables: the paper's own, or replacements where those are not available.

Three worlds hold a setup for some or all columns of the paper: "paper" (checkpoints and corrupted images by their names
on the Hub, or files of yours), "shared" (a folder of real images and weights) and "embedded" (the models and images of
this repository).
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
BENCHMARKS = {  # column of the paper -> benchmark of the published hyper-parameters
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "imagenet": "imagenet",
    "vit": "imagenet_vit",
    "gn": "imagenet_gn",
    "nfnet": "imagenet",
}


@dataclass(frozen=True)
class Setup:
    """A model and images for one column of the paper.

    Args:
        title: the title of its tables.
        model: the argument of `load_base_model`.
        images: the argument of `load_stream`; images that are not corrupted yet are corrupted here.
        clean: images without corruption, if `images` holds none.
        checkpoint: a .safetensors file for a model without weights.
        missing: why the setup cannot be loaded as it is, and which option helps.
        label_column: the column of the labels.
        preset: the preset of the corruptions.
        size: side of the input in pixels, if it is not the model's own.
        config: fields of SpearConfig that this network needs.
        differs: the difference from the paper; "" if model and images are the paper's own.
        beside: whether the paper's numbers are printed beside ours.
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
    """The paper's own setups; options such as `--set cifar10.checkpoint=FILE` give the files that are not published."""
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
    """The setups of a world after changes of the form "KEY.FIELD=VALUE".

    Raises:
        ConfigError: a change of another form, or of an unknown setup or field.
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
    """A loaded setup: the base, and a function that makes its stream for a batch size."""

    base: nn.Module
    processor: Processor
    stream: Callable[..., Any]
    """(batch_size, protocol="single", clean=False, images=None) -> a Stream"""

    def clean_images(self, count: int) -> Tensor:
        """(count, C, H, W) preprocessed clean images; DataError if the setup has none."""
        return torch.cat([batch["pixel_values"] for batch in self.stream(64, clean=True, images=count)])


def open_setup(setup: Setup, *, limit: int | None, seed: int, cache: Path, device: Any) -> Opened:
    """The setup with its model loaded; images that are corrupted here are kept in `cache`.

    Raises:
        SpearError: the model or the images cannot be loaded.
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
            shuffle=True,
            processor=processor,
            class_names=class_names,
            label_column=setup.label_column,
            preset="auto" if clean and setup.clean else setup.preset,
        )
        return made if made.recipe.preset is None else cached(made, cache)  # published corruptions need no cache

    return Opened(base, processor, stream)
