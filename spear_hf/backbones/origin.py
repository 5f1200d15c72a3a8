"""Where a base model came from: the library that builds it, the name it goes by, and the commit."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

Library = Literal["timm", "transformers", "torch"]
LIBRARIES: tuple[Library, ...] = ("timm", "transformers", "torch")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Origin:
    """What it takes to build a base again.

    Args:
        library: what builds it; "torch" for a model of the user's own.
        name: a Hub id, a timm architecture, or a folder; None where nothing is known.
        revision: the commit of a Hub id; None where it is not known.
    """

    library: Library = "torch"
    name: str | None = None
    revision: str | None = None

    @property
    def hub_id(self) -> str | None:
        """The name, where it is a Hub id ("owner/name") and no folder on this machine."""
        return self.name if self.name and is_hub_id(self.name) and not Path(self.name).exists() else None

    @property
    def is_private_path(self) -> bool:
        """Whether the name is a place on this machine, which says nothing to others and is nobody's business."""
        return bool(self.name) and (Path(str(self.name)).is_absolute() or str(self.name).startswith("~"))


def is_hub_id(name: str) -> bool:
    """Whether `name` reads as owner/name."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def remember_origin(model: nn.Module, origin: Origin) -> None:
    """Note on a model that was just built where it came from; copies of the model keep the note."""
    model._spear_origin = origin  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]


def origin_of(model: nn.Module) -> Origin:
    """What `remember_origin` noted, else what transformers or timm wrote on the model.

    timm names the weights of a tag also where they were not loaded; the fingerprint tells whether they were.
    """
    noted = getattr(model, "_spear_origin", None)
    if isinstance(noted, Origin):
        return noted
    if any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__):
        return Origin("transformers", getattr(model, "name_or_path", None) or None)
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg is not None:
        name = _entry(cfg, "hf_hub_id") or ".".join(filter(None, (_entry(cfg, "architecture"), _entry(cfg, "tag"))))
        return Origin("timm", name or None)
    return Origin()


def _entry(cfg: Any, name: str) -> str | None:
    value = cfg.get(name) if isinstance(cfg, dict) else getattr(cfg, name, None)
    return value if isinstance(value, str) and value else None
