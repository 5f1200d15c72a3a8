"""Adapter folder <-> SpearModel: adapter_config.json, adapter_model.safetensors and README.md, loaded strictly.

Everything is checked before anything is changed: the configuration, then the boundaries against the model, then the
base, then the header of the tensor file, and only then its tensors.
"""

import json
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import spear_hf
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.config import SpearConfig
from spear_hf.errors import (
    AdapterFormatError,
    AdapterLoadError,
    AdapterSaveError,
    BaseModelMismatchError,
    SpearError,
)
from spear_hf.files import write_atomically
from spear_hf.fingerprint import Fingerprint, fingerprint
from spear_hf.model import SpearModel

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
FORMAT_VERSION = 1
MAX_CONFIG_BYTES = 1_000_000
MAX_HEADER_BYTES = 1_000_000
MAX_ABS_VALUE = 1e4
_DTYPES = ("F64", "F32", "F16", "BF16")


# --- saving -------------------------------------------------------------------------------------------------------


def save_adapter(model: SpearModel, folder: str | Path, *, adapter_name: str | None = None) -> Path:
    """Write one adapter (the active one by default) into `folder`, each file atomically; saving twice gives equal bytes.

    Raises:
        AdapterSaveError: a value that is not finite, no adapter to save, or a folder that holds a model's own
            config.json (transformers could not load that model any more); nothing is written.
    """
    folder = Path(folder)
    name = adapter_name or model.active_adapter
    if name is None:
        raise AdapterSaveError("no adapter is active; name one: save_pretrained(folder, adapter_name=...)")
    if folder.exists() and not folder.is_dir():
        raise AdapterSaveError(f"{folder} is a file; an adapter is saved into a folder")
    if (folder / "config.json").exists():
        raise AdapterSaveError(f"{folder} holds a model's own config.json; an adapter beside it breaks it; take another folder")
    tensors = adapter_tensors(model, name)
    for key, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise AdapterSaveError(f"{key} is not finite, so the adapter is not saved; reset_adapter() or restore(snapshot) first")
    config = adapter_config(model, name)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    write_atomically(folder / WEIGHTS_NAME, save_tensors(tensors, {"spear": _header(config)}))
    write_atomically(folder / CONFIG_NAME, text)
    write_atomically(folder / "README.md", _card(config, tensors))
    return folder


def adapter_tensors(model: SpearModel, name: str) -> dict[str, Tensor]:
    """The tensors of the file: base_model.model.<module>.spear_gamma and .spear_beta, fp32 (C,), for each RSP."""
    adapter = model.adapters[name]
    assert isinstance(adapter, nn.ModuleDict)
    tensors: dict[str, Tensor] = {}
    for boundary in model.boundaries:
        if boundary.key in adapter:
            rsp = adapter[boundary.key]
            gamma, beta = tensor_keys(boundary)
            tensors[gamma] = rsp.gamma.detach().cpu().clone()
            tensors[beta] = rsp.beta.detach().cpu().clone()
    return tensors


def tensor_keys(boundary: Boundary) -> tuple[str, str]:
    """The two keys of one RSP, in the form that PEFT reads."""
    part = f".{boundary.part}" if boundary.part else ""
    stem = f"base_model.model.{boundary.module}.spear_{{}}{part}"
    return stem.format("gamma"), stem.format("beta")


def adapter_config(model: SpearModel, name: str) -> dict[str, Any]:
    """What adapter_config.json holds; the keys that PEFT asks for are among them."""
    base = model.base_model
    own = getattr(base, "config", None)
    return {
        "peft_type": "SPEAR",
        "task_type": None,
        "inference_mode": True,
        "format_version": FORMAT_VERSION,
        "spear_version": spear_hf.__version__,
        "base_model_name_or_path": getattr(base, "name_or_path", None) or getattr(own, "_name_or_path", None) or None,
        "base_model_class": type(base).__name__,
        "base_model_fingerprint": fingerprint(base).to_dict(),
        "boundaries": [boundary.to_dict() for boundary in model.boundaries],
        "spear_config": model.peft_config[name].to_dict(),
    }


def _header(config: dict[str, Any]) -> str:
    """What the tensor file says of itself, so that it cannot be read with another adapter's configuration."""
    return json.dumps({k: config[k] for k in ("format_version", "boundaries", "spear_config")}, sort_keys=True)


def _card(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    base = config["base_model_name_or_path"] or config["base_model_class"]
    count = sum(value.numel() for value in tensors.values())
    return (
        "---\nlibrary_name: spear-hf\npipeline_tag: image-classification\ntags:\n- test-time-adaptation\n- spear\n---\n\n"
        f"# SPeaR adapter for {base}\n\n"
        f"{count:,} numbers (a scale and a shift for each channel of a stage boundary) that were learned online, without "
        "labels, for exactly this base. The base itself is not in here and is not changed by it.\n\n"
        "```python\nfrom spear_hf import SpearModel\n\n"
        'model = SpearModel.from_pretrained(base, "this-folder")\n```\n'
    )


# --- loading ------------------------------------------------------------------------------------------------------


def load_spear_model(
    model: nn.Module,
    folder: str | Path,
    *,
    adapter_name: str = "default",
    check_base: Literal["error", "warn", "off"] = "error",
    inputs: Any = None,
) -> SpearModel:
    """A SpearModel over `model`, steered by the adapter saved in `folder`.

    Args:
        check_base: what to do where `model` is not the base that the adapter was learned on. Channel counts are
            checked in any case.
        inputs: as in `get_spear_model`.

    Raises:
        AdapterFormatError, AdapterLoadError, BaseModelMismatchError, BoundaryError: nothing of `model` is changed.
    """
    config = read_config(folder)
    spear_config = SpearConfig.from_dict(config["spear_config"])
    check_fingerprint(model, config, check_base)
    boundaries = match_boundaries(model, [Boundary.from_dict(row) for row in config["boundaries"]], spear_config, inputs)
    tensors = read_tensors(folder, config, select_boundaries(boundaries, spear_config.boundaries))
    steered = SpearModel(model, spear_config, adapter_name=adapter_name, boundaries=boundaries, inputs=inputs)
    steered.restore(tensors, adapter_name)
    return steered


def read_config(folder: str | Path) -> dict[str, Any]:
    """adapter_config.json, checked to be a SPeaR adapter of a format that this version reads."""
    folder = Path(folder)
    path = folder / CONFIG_NAME
    if not folder.is_dir():
        raise AdapterFormatError(f"there is no folder {folder}; an adapter is a folder with {CONFIG_NAME} and {WEIGHTS_NAME}")
    if not path.is_file():
        inside = sorted(p.parent.name for p in folder.glob(f"*/{CONFIG_NAME}"))
        hint = f"it holds the adapters {inside}: name one of those folders" if inside else "save_pretrained writes one"
        raise AdapterFormatError(f"{folder} holds no {CONFIG_NAME}; {hint}")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise AdapterFormatError(f"{path} has {path.stat().st_size:,} bytes, at most {MAX_CONFIG_BYTES:,} are read")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterFormatError(f"{path} is not JSON ({error}); fetch or save the adapter again") from error
    found = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
    if found != "SPEAR":
        raise AdapterFormatError(f"{path} is of peft_type {found!r}, this package reads SPEAR; use the library that wrote it")
    version = config.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION or version < 1:
        raise AdapterFormatError(f"{path} has format {version!r}, this version reads up to {FORMAT_VERSION}; upgrade spear-hf")
    missing = [k for k in ("base_model_fingerprint", "boundaries", "spear_config") if k not in config]
    if missing:
        raise AdapterFormatError(f"{path} lacks {missing}; fetch or save the adapter again")
    try:
        SpearConfig.from_dict(config["spear_config"])
        [Boundary.from_dict(row) for row in config["boundaries"]]
        Fingerprint.from_dict(config["base_model_fingerprint"])
    except SpearError as error:
        raise AdapterFormatError(f"{path}: {error}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise AdapterFormatError(f"{path} has an entry of another form ({error}); fetch or save the adapter again") from error
    return config


def check_fingerprint(model: nn.Module, config: dict[str, Any], check_base: Literal["error", "warn", "off"]) -> None:
    """Refuse (or warn of, or ignore) a base that the adapter was not learned on."""
    if check_base not in ("error", "warn", "off"):
        raise AdapterFormatError(f'check_base={check_base!r} is not known; allowed are "error", "warn" and "off"')
    difference = Fingerprint.from_dict(config["base_model_fingerprint"]).difference(fingerprint(model))
    if difference is None or check_base == "off":
        return
    expected = config.get("base_model_name_or_path") or config.get("base_model_class")
    text = (
        f"this adapter was learned on {expected}; the model given, {type(model).__name__}, has {difference}; "
        'load the right base, or pass check_base="warn" to steer another on purpose'
    )
    if check_base == "error":
        raise BaseModelMismatchError(text)
    warnings.warn(text, stacklevel=3)


def match_boundaries(
    model: nn.Module, saved: list[Boundary], config: SpearConfig, inputs: Any
) -> list[Boundary]:
    """The saved boundaries in this model: by module path, or, where modules were renamed, by depth; channels must agree."""
    names = {name for name, _ in model.named_modules()}
    if all(boundary.module in names for boundary in saved):
        return verify_boundaries(model, saved, inputs)
    found = find_boundaries(model, config.num_groups, stem=config.stem, inputs=inputs)
    if [(b.key, b.channels) for b in found] != [(b.key, b.channels) for b in saved]:
        wanted = {b.key: b.channels for b in saved}
        raise BaseModelMismatchError(
            f"the adapter's boundaries have channels {wanted}, {type(model).__name__} has "
            f"{ {b.key: b.channels for b in found} }; load the base that the adapter was learned on"
        )
    return found


def read_tensors(folder: str | Path, config: dict[str, Any], boundaries: list[Boundary]) -> dict[str, Tensor]:
    """The adapter's tensors as `SpearModel.restore` takes them; keys, shapes and dtypes are checked in the header first."""
    path = Path(folder) / WEIGHTS_NAME
    saved = {Boundary.from_dict(row).key: Boundary.from_dict(row) for row in config["boundaries"]}
    wanted: dict[str, tuple[str, Boundary]] = {}
    for boundary in boundaries:
        gamma, beta = tensor_keys(saved[boundary.key])
        wanted |= {gamma: (f"{boundary.key}.gamma", boundary), beta: (f"{boundary.key}.beta", boundary)}
    header = _read_header(path)
    if header.get("__metadata__", {}).get("spear") != _header(config):
        raise AdapterFormatError(f"{path} and {CONFIG_NAME} are of different adapters; fetch or save both again")
    entries = {key: value for key, value in header.items() if key != "__metadata__"}
    if entries.keys() != wanted.keys():
        missing, unexpected = sorted(wanted.keys() - entries.keys()), sorted(entries.keys() - wanted.keys())
        raise AdapterLoadError(f"{path} lacks {missing} and has unexpected {unexpected}; fetch or save the adapter again")
    for key, entry in entries.items():
        channels = wanted[key][1].channels
        if entry.get("shape") != [channels] or entry.get("dtype") not in _DTYPES:
            raise AdapterLoadError(
                f"{key} is {entry.get('dtype')} of shape {entry.get('shape')}, expected a float tensor of shape [{channels}]; "
                "load the adapter that was learned on this base"
            )
    tensors = _load(path)
    for key, value in tensors.items():
        if not bool(torch.isfinite(value).all()) or float(value.abs().max()) > MAX_ABS_VALUE:
            raise AdapterLoadError(f"{key} holds values that are not finite or above {MAX_ABS_VALUE:g}; the adapter is not loaded")
    return {wanted[key][0]: value.float() for key, value in tensors.items()}


def _read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, without reading a tensor; AdapterFormatError for anything else."""
    if not path.is_file():
        other = [p.name for p in path.parent.glob("adapter_model.*")]
        hint = f"{other} is there, but only safetensors files are read" if other else "save_pretrained writes it"
        raise AdapterFormatError(f"there is no {path}; {hint}")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            header = json.loads(file.read(length))
        if not isinstance(header, dict) or not all(isinstance(v, dict) for v in header.values()):
            raise ValueError("its header is not an object of objects")
    except (struct.error, ValueError, RecursionError) as error:
        raise AdapterFormatError(f"{path} is not a safetensors file ({error}); fetch or save the adapter again") from error
    return header


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(path.read_bytes())
    except Exception as error:  # the library raises its own SafetensorError, which is no subclass of anything shared
        raise AdapterFormatError(f"{path} cannot be read ({error}); fetch or save the adapter again") from error
