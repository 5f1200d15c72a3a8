"""Which normalisation layers are left alone: those of the last stage are too near the answer to move safely (SAR)."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from spear_hf.boundaries import find_boundaries
from spear_hf.errors import ConfigError, NoBoundariesError

Skip = str | Sequence[str] | None
"""None, "last_stage", "published", or module paths."""

PUBLISHED = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")


def kept_norms(model: nn.Module, kinds: tuple[type[nn.Module], ...], skip: Skip = None) -> list[Any]:
    """The normalisation layers of `model`, in its own order, but for those that are skipped.

    Args:
        model: any classifier.
        kinds: the classes that count as normalisation layers.
        skip: None keeps all. "last_stage" leaves out what comes after the last but one stage boundary: layer4 of a
            ResNet, the last 3 of 12 blocks of a ViT, and the norm of the head. "published" goes by the names that
            SAR and DeYO compare with, which mean just that in torchvision's ResNets and timm's ViT-B, and something
            else or nothing in other networks. A sequence leaves out these modules and all inside them.

    Raises:
        ConfigError: no stages were found, an unknown word, or a path that the model does not have.
    """
    norms = {name: m for name, m in model.named_modules() if isinstance(m, kinds)}
    if skip is None:
        return list(norms.values())
    if skip == "published":
        return [m for name, m in norms.items() if name != "norm" and not any(part in name for part in PUBLISHED)]
    skipped = _last_stage(model) if skip == "last_stage" else _inside(model, skip)
    return [m for name, m in norms.items() if name not in skipped]


def _last_stage(model: nn.Module) -> set[str]:
    """The paths of all modules that come after the last but one boundary."""
    try:
        boundaries = find_boundaries(model)
    except NoBoundariesError as error:
        raise ConfigError(
            f"no stages were found in {type(model).__name__}, so none of them is the last; "
            "pass skip=None, or the paths of the modules to skip"
        ) from error
    depths = sorted({b.depth for b in boundaries})
    if len(depths) < 2:
        return set()
    last_kept = [b.module for b in boundaries if b.depth == depths[-2]][-1]
    names = [name for name, _ in model.named_modules()]
    after = names[names.index(last_kept) + 1 :]
    return {name for name in after if not name.startswith(f"{last_kept}.")}


def _inside(model: nn.Module, skip: str | Sequence[str]) -> set[str]:
    names = {name for name, _ in model.named_modules()}
    if isinstance(skip, str) or not set(skip) <= names:
        raise ConfigError(
            f'skip={skip!r} is not allowed; give None, "last_stage", "published", or a list of module paths as '
            "named_modules() spells them"
        )
    return {name for name in names for path in skip if name == path or name.startswith(f"{path}.")}
