"""The backbone's own resize and normalisation, read from its transformers or timm configuration.

A network that was trained with mean 0.5 loses several points of accuracy, without a warning, if its images are
normalised with the mean of ImageNet. There is therefore no default: a model without preprocessing is refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spear_hf.errors import DataError, InputError
from spear_hf.utils.validation import first_line

ImageInput = Tensor | np.ndarray | Sequence[Any]
Transform = Callable[[Tensor, bool], Tensor]  # (N, C, H, W) uint8, "has the input size" -> (N, C, h, w) float32

_PROBES = ((300, 400), (400, 300))  # sizes that show whether the output size depends on the input size
_WAY_OUT = "pass mean=, std= and size= to load_processor"


class Processor:
    """uint8 RGB images to the (B, C, H, W) float32 tensor that one backbone was trained on; `load_processor` makes one.

    C is 3, or 1 for a backbone of grey images, which get the luma of the colors, as Pillow's convert("L").
    Images that have the input size already are only normalised. The 224 x 224 files of ImageNet-C are crops; another
    resize and crop would enlarge their centre.

    >>> import numpy as np
    >>> from spear_hf import load_processor
    >>> processor = load_processor(None, mean=[0.5] * 3, std=[0.25] * 3, size=16)
    >>> processor(np.full((2, 32, 32, 3), 255, np.uint8)).unique()
    tensor([2.])

    Args:
        transform: normalises one batch of equally sized images, and resizes it if it has not the input size.
        mean: per channel, for pixels in [0, 1].
        std: per channel, for pixels in [0, 1].
        size: (height, width) of the input, in pixels.
        origin: where the values were read, for provenance.
        channels: C, of the input; 3 or 1.
    """

    def __init__(
        self,
        transform: Transform,
        mean: Iterable[float],
        std: Iterable[float],
        size: tuple[int, int],
        origin: str,
        channels: int = 3,
    ) -> None:
        self.channels = channels
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.size = size
        self.origin = origin
        self._transform = transform

    def __call__(self, images: ImageInput) -> Tensor:
        """(B, C, H, W) float32 of uint8 images: one (B, H, W, 3) or (B, 3, H, W) array, or a list of any sizes.

        Raises:
            InputError: float images, which may be normalised already, or images that are not RGB.
        """
        if isinstance(images, Tensor | np.ndarray):
            return self._one_size(_channels_first(images, ndim=4))
        groups: dict[torch.Size, list[int]] = {}
        batch = [_channels_first(image, ndim=3) for image in images]
        for position, image in enumerate(batch):
            groups.setdefault(image.shape, []).append(position)
        out = torch.empty(len(batch), self.channels, *self.size)
        for members in groups.values():
            out[members] = self._one_size(torch.stack([batch[i] for i in members]))
        return out

    def _one_size(self, images: Tensor) -> Tensor:
        if len(images) == 0:
            return torch.empty(0, self.channels, *self.size)
        if self.channels == 1:
            images = grey(images)
        return self._transform(images, tuple(images.shape[2:]) == self.size)

    def describe(self) -> dict[str, Any]:
        """What a rerun needs to prepare images the same way; JSON-ready."""
        return {
            "origin": self.origin,
            "mean": list(self.mean),
            "std": list(self.std),
            "size": list(self.size),
            "transform": repr(self._transform),
        }


def load_processor(
    model: nn.Module | None,
    name: str | None = None,
    revision: str | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
) -> Processor:
    """The preprocessing that `model` was trained with.

    >>> import timm
    >>> from spear_hf import load_processor
    >>> load_processor(timm.create_model("test_resnet")).size
    (160, 160)

    Args:
        model: a transformers or timm classifier, also inside DDP, torch.compile or a SpearModel.
        name: the folder, Hub id or timm name to read it from, instead of the model.
        revision: the commit of a Hub id.
        mean: per channel, for pixels in [0, 1]; with `std` and `size` it replaces what the model has. One value is
            enough for a model of grey images.
        std: per channel, for pixels in [0, 1].
        size: side, or (height, width), in pixels; images are resized to it (bilinear), without a crop.

    Raises:
        DataError: the model has no preprocessing.
    """
    if mean is not None or std is not None or size is not None:
        if mean is None or std is None or size is None:
            raise DataError(f"mean={mean}, std={std}, size={size}: preprocessing needs all three; {_WAY_OUT}")
        height, width = (size, size) if isinstance(size, int) else size
        config = {"input_size": (3, height, width), "mean": tuple(mean), "std": tuple(std)}
        config |= {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
        return _from_timm_config(config, "given", _input_channels(_unwrap(model)) or len(tuple(mean)))
    base = _unwrap(model)
    channels = _input_channels(base)
    if name is None and (cfg := getattr(base, "pretrained_cfg", None)) is not None:
        return _from_timm_cfg(dict(cfg), type(base).__name__, channels)
    if name is not None and _is_timm_name(name):
        return _from_timm_name(name, channels)
    path = name or getattr(base, "name_or_path", "")
    if not path:
        raise DataError(f"{type(base).__name__} has no preprocessing (no folder, Hub id or timm cfg); {_WAY_OUT}")
    return _from_transformers(path, revision, channels or 3)


class _TimmTransform:
    """timm's own evaluation transform: resize and crop each PIL image, then normalise the batch.

    torchvision's resize of tensors differs from PIL's by up to 10 grey levels (bicubic) and was measured to be slower.
    PIL gives the pixels with which the weights were evaluated.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        from timm.data.transforms_factory import create_transform

        self.crop: Any = create_transform(**config, is_training=False, normalize=False)
        self.mean = torch.tensor(config["mean"]).view(-1, 1, 1)
        self.std = torch.tensor(config["std"]).view(-1, 1, 1)

    def __call__(self, images: Tensor, fits: bool) -> Tensor:
        from torchvision.transforms.functional import to_pil_image

        if not fits:
            images = torch.stack([self.crop(to_pil_image(image)) for image in images])
        return images.float().div_(255).sub_(self.mean).div_(self.std)

    def __repr__(self) -> str:
        return " > ".join(str(step) for step in self.crop.transforms[:-1])


class _TransformersTransform:
    """A transformers image processor on uint8 tensors, without resize and crop if the images have the input size."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, images: Tensor, fits: bool) -> Tensor:
        only_normalise = {"do_resize": False, "do_center_crop": False} if fits else {}
        out = self.processor(
            images=list(images), return_tensors="pt", input_data_format="channels_first", **only_normalise
        )
        return out["pixel_values"]

    def __repr__(self) -> str:
        steps = ("do_resize", "size", "resample", "crop_pct", "do_center_crop", "crop_size", "rescale_factor")
        found = {step: value for step in steps if (value := getattr(self.processor, step, None)) is not None}
        return f"{type(self.processor).__name__}({', '.join(f'{step}={_plain(v)}' for step, v in found.items())})"


def _from_transformers(path: str, revision: str | None, channels: int) -> Processor:
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(path, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise DataError(f"{path!r} has no image preprocessing ({reason}); {_WAY_OUT}") from error
    origin = f"transformers:{path}" + (f"@{revision}" if revision else "")
    if hasattr(processor, "data_config"):  # a wrapped timm model: the same transform, without conversions to PIL
        return _from_timm_config(processor.data_config, origin, channels)
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,) * 3, (1.0,) * 3)
    mean, std = _per_channel(mean, channels), _per_channel(std, channels)
    if channels == 1:
        processor.image_mean, processor.image_std, processor.do_convert_rgb = list(mean), list(std), False
    transform = _TransformersTransform(processor)
    wide, tall = (transform(torch.zeros(1, channels, *size, dtype=torch.uint8), False).shape[2:] for size in _PROBES)
    if wide != tall:
        sizes = f"{tuple(wide)} for {_PROBES[0]}, {tuple(tall)} for {_PROBES[1]}"
        raise DataError(f"{path!r} keeps the aspect ratio ({sizes}): images do not stack; {_WAY_OUT}")
    return Processor(transform, mean, std, (wide[0], wide[1]), origin, channels)


def _from_timm_cfg(cfg: dict[str, Any], owner: str, channels: int | None) -> Processor:
    from timm.data.config import resolve_data_config

    missing = [key for key in ("mean", "std", "input_size") if not cfg.get(key)]
    if missing:  # timm would use the values of ImageNet
        raise DataError(f"the timm cfg of {owner} lacks {', '.join(missing)}; {_WAY_OUT}")
    tag = f".{cfg['tag']}" if cfg.get("tag") else ""
    return _from_timm_config(resolve_data_config(pretrained_cfg=cfg), f"timm:{cfg.get('architecture')}{tag}", channels)


def _is_timm_name(name: str) -> bool:
    from timm.models import is_model

    return is_model(name)


def _from_timm_name(name: str, channels: int | None) -> Processor:
    from timm.models import get_pretrained_cfg

    cfg = get_pretrained_cfg(name)
    return _from_timm_cfg(cfg.to_dict() if cfg else {}, name, channels)


def _from_timm_config(config: dict[str, Any], origin: str, channels: int | None) -> Processor:
    in_config, height, width = config["input_size"]
    channels = int(channels or in_config)
    mean, std = _per_channel(config["mean"], channels), _per_channel(config["std"], channels)
    config = {**config, "mean": mean, "std": std, "input_size": (channels, height, width)}
    return Processor(_TimmTransform(config), mean, std, (height, width), origin, channels)


def _input_channels(base: nn.Module | None) -> int | None:
    """The number of channels that a model takes: from its configuration or its first convolution; None if unknown."""
    if isinstance(found := getattr(getattr(base, "config", None), "num_channels", None), int):
        return found
    convolutions = (m for m in base.modules() if isinstance(m, nn.Conv2d)) if base is not None else iter(())
    return next((m.in_channels for m in convolutions), None)


def _per_channel(values: Iterable[float], channels: int) -> tuple[float, ...]:
    """`values` for each of `channels` channels; three equal ones are right for a grey model too."""
    given = tuple(float(value) for value in values)
    if channels not in (1, 3):
        raise DataError(f"the model takes images of {channels} channels; images here have 3, or 1 for a grey model")
    if len(given) == channels:
        return given
    if len(set(given)) > 1:
        raise DataError(f"the model takes {channels} channel(s), but its preprocessing has {given}; {_WAY_OUT}")
    return given[:1] * channels


def grey(images: Tensor) -> Tensor:
    """(N, 1, H, W) uint8 luma of (N, 3, H, W) RGB, in Pillow's integer arithmetic."""
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)


def _unwrap(model: nn.Module | None) -> nn.Module | None:
    """The backbone inside DDP (`module`), torch.compile (`_orig_mod`) or a SpearModel (`get_base_model()`)."""
    while model is not None:
        if callable(get := getattr(model, "get_base_model", None)):
            model = get()  # pyright: ignore[reportAssignmentType]
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            break
    return model


def _channels_first(images: Any, ndim: int) -> Tensor:
    """(..., 3, H, W) uint8; the channel axis is the last one if it has length 3, otherwise the third from the end."""
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    if tensor.dtype != torch.uint8:
        raise InputError(_wrong_dtype(tensor))
    if tensor.ndim != ndim or 3 not in (tensor.shape[-3], tensor.shape[-1]):
        wanted = "(B, H, W, 3)" if ndim == 4 else "(H, W, 3)"
        raise InputError(
            f"images of shape {tuple(tensor.shape)}, but RGB {wanted} is needed; convert('RGB'), x[None] for one"
        )
    return tensor.movedim(-1, -3) if tensor.shape[-1] == 3 else tensor


def _wrong_dtype(tensor: Tensor) -> str:
    low, high = (tensor.min().item(), tensor.max().item()) if tensor.numel() else (0, 0)
    came = f"{str(tensor.dtype).removeprefix('torch.')} images with values in [{low:.3g}, {high:.3g}]"
    if tensor.is_floating_point() and (low < 0 or low != low):
        return f"{came} look normalised already; pass uint8 images, or pass these to the model directly"
    return f"{came}, but the processor takes uint8 in [0, 255]; for images in [0, 1] pass (255 * x).round().byte()"


def _plain(value: Any) -> Any:
    """A value that prints briefly: a transformers SizeDict without its empty fields, an IntEnum as its number."""
    if hasattr(value, "shortest_edge"):
        return {key: side for key, side in vars(value).items() if side is not None}
    return int(value) if isinstance(value, IntEnum) else value


def load_class_names(model: nn.Module | None) -> list[tuple[str, ...]] | None:
    """The names of each class of a model, in index order, or None; classes of ImageNet have their WordNet id first.

    A transformers model has them in its configuration. timm knows them for ImageNet and its subsets only.

    >>> import timm
    >>> from spear_hf.data.processor import load_class_names
    >>> load_class_names(timm.create_model("test_resnet"))[0]
    ('n01440764', 'tench, Tinca tinca', 'tench')
    """
    base = _unwrap(model)
    if (id2label := getattr(getattr(base, "config", None), "id2label", None)) is not None:
        return _with_wnids([(name,) for name in _in_order(id2label)])
    cfg = getattr(base, "pretrained_cfg", None)
    if cfg is None:
        return None
    if (labels := dict(cfg).get("label_names")) is not None:
        full = dict(cfg).get("label_descriptions") or {}
        return [tuple(dict.fromkeys((str(label), str(full.get(label, label))))) for label in _in_order(labels)]
    from timm.data.imagenet_info import infer_imagenet_subset

    subset = infer_imagenet_subset(base)
    return list(_imagenet_names(subset)) if subset else None


def _in_order(names: Any) -> list[str]:
    """The names of classes 0, 1, 2, ... of a list, or of a mapping whose keys may be texts ("10" comes after "2")."""
    if not isinstance(names, Mapping):
        return [str(name) for name in names]
    try:
        by_number = {int(key): str(name) for key, name in names.items()}
    except ValueError:
        by_number = {}
    if sorted(by_number) != list(range(len(names))):
        shown = ", ".join(repr(key) for key in list(names)[:4])
        raise DataError(f"id2label has the keys {shown}, ...; they must be 0 to {len(names) - 1}: pass class_names=")
    return [by_number[k] for k in range(len(names))]


def _with_wnids(names: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The same names, with WordNet ids first if they are those of ImageNet."""
    imagenet = _imagenet_names("imagenet-1k")
    agree = sum(_first(ours[-1]) == _first(theirs[1]) for ours, theirs in zip(names, imagenet, strict=False))
    is_imagenet = len(names) == len(imagenet) and agree > 0.95 * len(names)  # names such as "crane" differ
    return [(wnid, *own) for own, (wnid, *_) in zip(names, imagenet, strict=True)] if is_imagenet else names


@cache
def _imagenet_names(subset: str) -> tuple[tuple[str, ...], ...]:
    """(WordNet id, all names, first name) of each class, from the tables in timm."""
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo(subset)
    full = [info.index_to_description(k) for k in range(info.num_classes())]
    return tuple((info.index_to_label_name(k), name, name.split(",")[0]) for k, name in enumerate(full))


def _first(name: str) -> str:
    """The first of several names of a class: "tench" of "tench, Tinca tinca"."""
    return name.split(",")[0].strip().replace("_", " ").casefold()
