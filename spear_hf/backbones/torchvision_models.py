"""torchvision's classifiers by name, with the preprocessing and the class names that belong to their weights."""

from typing import Any

from torch import nn

PREFIX = "torchvision:"


def torchvision_names() -> list[str]:
    """The names of torchvision's classifiers.

    >>> from spear_hf.backbones.torchvision_models import torchvision_names
    >>> "googlenet" in torchvision_names()
    True
    """
    from torchvision import models

    return models.list_models(module=models)


def build_torchvision(name: str, *, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """A torchvision classifier, with `pretrained_cfg` in timm's form, where preprocessing and class names are found.

    >>> from spear_hf.backbones.torchvision_models import build_torchvision
    >>> build_torchvision("squeezenet1_1", pretrained=False).pretrained_cfg["crop_pct"]
    0.875

    Args:
        name: one of `torchvision_names`.
        pretrained: whether to download torchvision's newest weights.
        num_classes: of the head; None takes 1000.
    """
    from torchvision import models

    weights: Any = models.get_model_weights(name)
    default = weights.DEFAULT
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3") and not pretrained:
        options |= {"init_weights": False}  # torchvision warns that its random weights take long to draw
    model: Any = models.get_model(name, weights=default if pretrained else None, **options)
    categories = default.meta["categories"]
    model.num_classes = num_classes or len(categories)
    model.pretrained_cfg = _config(name, default) | {"num_classes": model.num_classes}
    return model


def _config(name: str, weights: Any) -> dict[str, Any]:
    """The evaluation transform of torchvision's weights, in timm's words."""
    transform = weights.transforms()
    crop, resize = transform.crop_size[0], transform.resize_size[0]
    return {
        "architecture": f"torchvision_{name}",
        "tag": weights.name.lower(),
        "input_size": (3, crop, crop),
        "crop_pct": crop / resize,
        "interpolation": transform.interpolation.value,
        "mean": tuple(transform.mean),
        "std": tuple(transform.std),
    }
