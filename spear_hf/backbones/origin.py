"""Where a base model came from: the library that builds it, its name there, and the commit."""

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from torch import nn

Library = Literal["timm", "transformers", "torch"]
LIBRARIES: tuple[Library, ...] = ("timm", "transformers", "torch")
_PATHS = re.compile(r"(?<![\w/.<])(?!//)(?:local-dir:|file://)?(?:[A-Za-z]:[\\/]|\\\\|\.{0,2}/|~[\w.-]*/)[^\s'\",;|]+")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Origin:
    """What is needed to build a base again.

    Args:
        library: the one that builds it; "torch" for a model of the user's own.
        name: a Hub id, a timm architecture, or a folder; None if it is not known.
        revision: the commit of a Hub id; None if it is not known.

    >>> from spear_hf.backbones.origin import Origin
    >>> Origin("timm", "timm/resnet18.a1_in1k").hub_id
    'timm/resnet18.a1_in1k'
    """

    library: Library = "torch"
    name: str | None = None
    revision: str | None = None

    @property
    def hub_id(self) -> str | None:
        """The name if it is a Hub id ("owner/name") and not a folder on this machine, else None."""
        return self.name if self.name and is_hub_id(self.name) and not Path(self.name).exists() else None

    @property
    def is_private_path(self) -> bool:
        """Whether the name is a path on this machine, which is useless to others and may be private."""
        return self.name is not None and is_path(self.name)


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form owner/name.

    >>> from spear_hf.backbones.origin import is_hub_id
    >>> is_hub_id("microsoft/resnet-50"), is_hub_id("./models/resnet")
    (True, False)
    """
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def is_path(name: str) -> bool:
    """Whether `name` is, or may be, a file or folder of this machine.

    >>> from spear_hf.backbones.origin import is_path
    >>> [is_path(name) for name in ("/data/resnet", "./models/resnet", "a/b/c", "microsoft/resnet-50", "resnet50")]
    [True, True, True, False, False]
    """
    name = name.removeprefix("local-dir:").removeprefix("file://")
    looks_so = name.startswith(("/", "~", ".", "\\")) or PureWindowsPath(name).drive != "" or "\\" in name
    return looks_so or (("/" in name or Path(name).is_dir()) and (not is_hub_id(name) or Path(name).exists()))


def as_folder(name: str) -> str:
    """The name of a folder, spelled so that nobody takes it for a Hub id of the same letters.

    >>> from spear_hf.backbones.origin import as_folder
    >>> as_folder("models/resnet"), as_folder("/data/resnet")
    ('./models/resnet', '/data/resnet')
    """
    return f"./{name}" if is_hub_id(name) else name


def without_paths(value: Any) -> Any:
    """A JSON value in which a path of this machine is cut to its last part.

    >>> from spear_hf.backbones.origin import without_paths
    >>> without_paths({"processor": "/home/me/models/resnet", "domain": "fog/5"})
    {'processor': 'resnet', 'domain': 'fog/5'}
    """
    if isinstance(value, dict):
        return {without_paths(key): without_paths(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(each) for each in value]
    if not isinstance(value, str):
        return value
    return _PATHS.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], value)


def remember_origin(model: nn.Module, origin: Origin) -> None:
    """Store the origin as an attribute of a model; copies of the model keep it.

    >>> from torch import nn
    >>> from spear_hf.backbones.origin import Origin, origin_of, remember_origin
    >>> net = nn.Linear(3, 2)
    >>> remember_origin(net, Origin("timm", "resnet18"))
    >>> origin_of(net).name
    'resnet18'
    """
    model._spear_origin = origin  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]


def origin_of(model: nn.Module) -> Origin:
    """The origin that `remember_origin` stored, else the one that transformers or timm stored.

    timm names the weights of a tag even if they were not loaded; the fingerprint shows whether they were.

    >>> import timm
    >>> from spear_hf.backbones.origin import origin_of
    >>> origin_of(timm.create_model("test_resnet")).library
    'timm'
    """
    stored = getattr(model, "_spear_origin", None)
    if isinstance(stored, Origin):
        return stored
    model = getattr(model, "two_tower", model)  # of a ZeroShotClassifier
    if any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__):
        name = getattr(model, "name_or_path", None) or None
        return Origin("transformers", name if name is None or _came_from_hub(name) else as_folder(name))
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg is not None:
        name = _entry(cfg, "hf_hub_id") or ".".join(filter(None, (_entry(cfg, "architecture"), _entry(cfg, "tag"))))
        return Origin("timm", name or None)
    return Origin()


def _came_from_hub(name: str) -> bool:
    """Whether transformers had this name from the Hub: its cache then holds the repo, and there is no such folder."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if not is_hub_id(name) or Path(name).exists():
        return False
    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "snapshots").is_dir()


def _entry(cfg: Any, name: str) -> str | None:
    value = cfg.get(name) if isinstance(cfg, dict) else getattr(cfg, name, None)
    return value if isinstance(value, str) and value else None
