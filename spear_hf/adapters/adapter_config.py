"""adapter_config.json: equal adapters write equal bytes, and every entry that is read is checked.

The file may come from a stranger. It holds no code, class path or pattern, and the type and range of every entry are
checked before the entry is used.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spear_hf.adapters.containment import contained
from spear_hf.backbones.fingerprint import Fingerprint
from spear_hf.backbones.head import Head, is_line
from spear_hf.backbones.origin import LIBRARIES, Origin
from spear_hf.boundaries import Boundary, select_boundaries
from spear_hf.config import SpearConfig
from spear_hf.errors import AdapterFormatError, BoundaryError, ConfigError
from spear_hf.utils.folders import settle

CONFIG_NAME = "adapter_config.json"
FORMAT_VERSION = 1
MAX_CONFIG_BYTES = 1_000_000
MAX_CHANNELS = 1_000_000
_REQUIRED = ("base_model_fingerprint", "boundaries", "spear_config")
_FIELDS = {
    "base_model_class",
    "base_model_library",
    "base_model_name_or_path",
    "base_model_revision",
    "format_version",
    "head",
    "peft_type",
    "spear_version",
    *_REQUIRED,
}
_PEFT_FIELDS = {"auto_mapping", "inference_mode", "peft_version", "revision", "task_type"}  # PEFT reads or writes these


@dataclass(frozen=True)
class AdapterConfig:
    """Everything about an adapter except its tensors.

    Args:
        spear_config: placement, objective and optimizer.
        boundaries: all boundaries of the base, z_0..z_L; `spear_config.boundaries` selects those that carry an RSP.
        fingerprint: of the base that the adapter was learned on.
        origin: how to build that base again, as far as it is known.
        base_class: the name of the base's class, for messages.
        spear_version: of the package that wrote the file.
        head: how logits come out of a base that is no classifier by itself.

    >>> from spear_hf.adapters.adapter_config import AdapterConfig
    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.config import SpearConfig
    >>> stem = Boundary(depth=0, name="stem", module="conv1", channels=16)
    >>> AdapterConfig(SpearConfig(), (stem,), Fingerprint(0, "", ())).chosen == [stem]
    True
    """

    spear_config: SpearConfig
    boundaries: tuple[Boundary, ...]
    fingerprint: Fingerprint
    origin: Origin = field(default_factory=Origin)
    base_class: str = "the base"
    spear_version: str = "unknown"
    head: Head = field(default_factory=Head)

    @property
    def chosen(self) -> list[Boundary]:
        """The boundaries that carry an RSP."""
        return select_boundaries(self.boundaries, self.spear_config.boundaries)

    @property
    def base_name(self) -> str:
        """The name of the base for messages: that of its origin, else of its class."""
        return self.origin.name or self.base_class

    def to_json(self) -> str:
        """The text of adapter_config.json, with sorted keys, so that equal adapters give equal bytes."""
        data = {
            "peft_type": "SPEAR",
            "task_type": None,
            "inference_mode": True,
            "format_version": FORMAT_VERSION,
            "spear_version": self.spear_version,
            "base_model_name_or_path": self.origin.name,
            "base_model_revision": self.origin.revision,
            "base_model_library": self.origin.library,
            "base_model_class": self.base_class,
            "base_model_fingerprint": self.fingerprint.to_dict(),
        }
        data |= {"head": head} if (head := self.head.to_dict()) else {}
        return json.dumps(data | self._essence(), indent=2, sort_keys=True) + "\n"

    def header(self) -> str:
        """The metadata of the tensor file; it ties the tensors to this configuration."""
        return json.dumps({"format_version": FORMAT_VERSION} | self._essence(), sort_keys=True)

    def matches_header(self, text: object) -> bool:
        """Whether the metadata of a tensor file belongs to this configuration.

        Both are parsed before they are compared: a field that did not exist when the files were written then has its
        default in both.
        """
        try:
            header = json.loads(text) if isinstance(text, str) else {}
            same = read_spear_config(header["spear_config"]) == self.spear_config
            return same and header["boundaries"] == self._essence()["boundaries"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    def _essence(self) -> dict[str, Any]:
        return {"boundaries": [b.to_dict() for b in self.boundaries], "spear_config": self.spear_config.to_dict()}


def read_config(folder: str | Path) -> AdapterConfig:
    """The configuration in `folder`/adapter_config.json.

    >>> import tempfile, timm
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.adapters.adapter_config import read_config
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_config(model.save_pretrained(folder)).base_class
    'ResNet'

    Raises:
        AdapterFormatError: there is no such file, or it is not a SPeaR adapter of a format that this version reads.
    """
    folder = Path(folder)
    settle(folder)
    path = contained(folder, CONFIG_NAME)
    if not folder.is_dir():
        raise AdapterFormatError(f"there is no folder {folder}; an adapter is a folder that holds {CONFIG_NAME}")
    if not path.is_file():
        inside = sorted(p.parent.name for p in folder.glob(f"*/{CONFIG_NAME}"))
        hint = f"it holds the adapters {inside}: name one of those folders" if inside else "save_pretrained writes one"
        raise AdapterFormatError(f"{folder} holds no {CONFIG_NAME}; {hint}")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise AdapterFormatError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise AdapterFormatError(f"{path} has {path.stat().st_size:,} bytes, and at most {MAX_CONFIG_BYTES:,} are read")
    try:
        data = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise AdapterFormatError(f"{path} is not JSON ({error}); download or save the adapter again") from error
    return parse_config(data, str(path))


def parse_config(data: object, path: str = CONFIG_NAME) -> AdapterConfig:
    """The configuration in a parsed adapter_config.json.

    Args:
        data: the JSON value.
        path: the name of the file, for messages.

    >>> import json
    >>> from spear_hf.adapters.adapter_config import AdapterConfig, parse_config
    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.config import SpearConfig
    >>> config = AdapterConfig(SpearConfig(), (Boundary(0, "stem", "conv1", channels=16),), Fingerprint(0, "", ()))
    >>> parse_config(json.loads(config.to_json())) == config
    True

    Raises:
        AdapterFormatError: another library's adapter, a newer format, or an entry of a wrong type, range or name.
    """
    found = data.get("peft_type") if isinstance(data, dict) else type(data).__name__
    if not isinstance(data, dict) or found != "SPEAR":
        raise AdapterFormatError(
            f"{path} has peft_type {found!r}, and this package reads SPEAR; load it with its own library"
        )
    version = data.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise AdapterFormatError(
            f"{path} has format {version!r}, and this version reads 1..{FORMAT_VERSION}; upgrade spear-hf"
        )
    missing, unknown = [k for k in _REQUIRED if k not in data], sorted(data.keys() - _FIELDS - _PEFT_FIELDS)
    if missing or unknown:
        raise AdapterFormatError(f"{path} lacks {missing} and has unknown {unknown}; download or save it again")
    try:
        config = AdapterConfig(
            read_spear_config(data["spear_config"]),
            tuple(_boundary(row) for row in data["boundaries"]),
            Fingerprint.from_dict(data["base_model_fingerprint"]),
            _origin(data),
            _text(data.get("base_model_class") or "the base"),
            _text(data.get("spear_version") or "unknown"),
            Head.from_dict(data.get("head", {})),
        )
        _check_boundaries(config)
    except (ConfigError, BoundaryError) as error:
        raise AdapterFormatError(f"{path}: {error}") from error
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise AdapterFormatError(f"{path} has an invalid entry ({error}); download or save it again") from error
    return config


def _boundary(row: dict[str, Any]) -> Boundary:
    """The Boundary in a row; ValueError for a field of a wrong type or range."""
    boundary = Boundary.from_dict(row)
    counts = ((boundary.depth, 0, 999), (boundary.part, 0, 999), (boundary.channels, 1, MAX_CHANNELS))
    for value, low, high in (*counts, (boundary.channel_axis, -8, 8)):
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"boundary {boundary.name!r}: {value!r} is not an integer in {low}..{high}")
    for text in (boundary.name, boundary.module):
        _text(text)
    if boundary.where not in ("in", "out"):
        raise ValueError(f"boundary {boundary.name!r}: where={boundary.where!r}")
    if not all(type(step) in (int, str) for step in boundary.output_slot):
        raise ValueError(f"boundary {boundary.name!r}: output_slot={boundary.output_slot!r}")
    return boundary


def _check_boundaries(config: AdapterConfig) -> None:
    keys = [boundary.key for boundary in config.boundaries]
    if len(set(keys)) < len(keys):
        raise ValueError(f"boundaries {keys} contain a duplicate")
    if len({(b.module, b.where, b.part) for b in config.boundaries}) < len(keys):
        raise ValueError("two boundaries are at the same place")
    if not config.chosen:  # `chosen` itself raises BoundaryNotFoundError for a name that is not among them
        raise ValueError("no boundary carries an RSP")


def _origin(data: dict[str, Any]) -> Origin:
    library = data.get("base_model_library") or "torch"
    if library not in LIBRARIES:
        raise ValueError(f"base_model_library={library!r}")
    name, revision = data.get("base_model_name_or_path"), data.get("base_model_revision")
    return Origin(library, None if name is None else _text(name), None if revision is None else _text(revision))


def _text(value: object) -> str:
    if not (value == "" or is_line(value)) or not isinstance(value, str):
        raise ValueError(f"{str(value)[:50]!r} is not a line of text")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key is repeated")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_FORMER = {"statistics_memory": "memory_images", "answer_views": "tta_views", "learn_every": "adapt_every"}
_GONE = ("diversity_memory", "diversity_batch", "alpha_trial")


def read_spear_config(data: Any) -> SpearConfig:
    """The configuration in an adapter's file, which may be from before fields were renamed.

    Such an adapter learned without the likelihood ratio and with steps of full size, and says so from now on.

    >>> from spear_hf.adapters.adapter_config import read_spear_config
    >>> read_spear_config({"answer_views": 2, "diversity_batch": 16}).tta_views
    2
    """
    if not isinstance(data, dict) or not (data.keys() & {*_FORMER, *_GONE}):
        return SpearConfig.from_dict(data)
    found: dict[str, Any] = {"likelihood_ratio": 0.0, "evidence_images": 0.0}
    found |= {_FORMER.get(str(key), str(key)): value for key, value in data.items() if key not in _GONE}
    return SpearConfig.from_dict(found)
