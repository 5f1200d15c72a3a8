"""Save an adapter to a folder and read it back: adapter_config.json and adapter_model.safetensors.

Both files are written, or neither. The header of the tensor file is compared with the configuration before any tensor
is read, because the files may come from a stranger; formats other than safetensors are refused.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.adapters.adapter_config import CONFIG_NAME, AdapterConfig, read_config
from spear_hf.adapters.containment import contained
from spear_hf.boundaries import Boundary
from spear_hf.errors import AdapterFormatError, AdapterLoadError, AdapterSaveError
from spear_hf.utils.folders import write_together

WEIGHTS_NAME = "adapter_model.safetensors"
MAX_WEIGHTS_BYTES = 64_000_000  # half a million channels at 15 boundaries; real adapters have a few kB
MAX_HEADER_BYTES = 1_000_000
MAX_ABS_VALUE = 1e4
_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_PEFT_METADATA = {"format": "pt"}  # the whole metadata of a file that PEFT wrote


# --- writing ------------------------------------------------------------------------------------------------------


def save_adapter(
    config: AdapterConfig,
    state: Mapping[str, Tensor],
    folder: str | Path,
    further: Mapping[str, bytes | None] | None = None,
) -> Path:
    """The folder, after the files of one adapter were written into it, all or none; saving twice gives equal bytes.

    Args:
        config: the configuration of the adapter.
        state: "<boundary key>.gamma" and "<boundary key>.beta" -> (C,).
        folder: made if it is missing.
        further: name -> content of files that belong to the adapter, its card for example; None deletes one.

    >>> import tempfile, torch
    >>> from spear_hf.adapters.adapter_config import AdapterConfig
    >>> from spear_hf.adapters.serialization import read_adapter, save_adapter
    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.config import SpearConfig
    >>> config = AdapterConfig(SpearConfig(), (Boundary(0, "stem", "conv1", channels=1),), Fingerprint(0, "", ()))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_adapter(config, {"0.gamma": torch.tensor([2.0]), "0.beta": torch.tensor([0.5])}, folder)
    ...     read_adapter(folder)[1]["0.gamma"]
    tensor([2.])

    Raises:
        AdapterSaveError: a value that is not finite, or a folder that holds a model's own config.json, which
            transformers could not load any more; nothing is written.
        OutputError: the disk is full or read-only; an adapter that was there is kept whole.
    """
    folder = Path(folder)
    refuse_model_folder(folder)
    files = {WEIGHTS_NAME: weights_bytes(config, state), CONFIG_NAME: config.to_json().encode()}
    return write_together(folder, files | dict(further or {}))


def weights_bytes(config: AdapterConfig, state: Mapping[str, Tensor]) -> bytes:
    """The content of adapter_model.safetensors.

    >>> import torch
    >>> from spear_hf.adapters.adapter_config import AdapterConfig
    >>> from spear_hf.adapters.serialization import weights_bytes
    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.config import SpearConfig
    >>> config = AdapterConfig(SpearConfig(), (Boundary(0, "stem", "conv1", channels=1),), Fingerprint(0, "", ()))
    >>> b"spear_gamma" in weights_bytes(config, {"0.gamma": torch.tensor([2.0]), "0.beta": torch.tensor([0.5])})
    True

    Raises:
        AdapterSaveError: a value that is not finite or above 10,000, or boundaries that share a name.
    """
    tensors = _file_tensors(config, state)
    if len(tensors) < 2 * len(config.chosen):
        raise AdapterSaveError(
            "two boundaries are at the same place of one module, so their tensors would share a name; choose others"
        )
    for key, value in tensors.items():
        if not bool(torch.isfinite(value).all()) or float(value.abs().max()) > MAX_ABS_VALUE:
            raise AdapterSaveError(
                f"{key} is not finite or above {MAX_ABS_VALUE:g}, so the adapter is not saved; "
                "call reset_adapter() or restore(snapshot) first"
            )
    return save_tensors(tensors, {"spear": config.header()})


def refuse_model_folder(folder: Path) -> None:
    """Raise AdapterSaveError if `folder` is a file, or holds a model's own config.json.

    transformers takes a folder with an adapter_config.json for an adapter, so it could not load that model any more.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.adapters.serialization import refuse_model_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     refuse_model_folder(Path(folder))
    """
    if folder.exists() and not folder.is_dir():
        raise AdapterSaveError(f"{folder} is a file; an adapter is saved into a folder")
    if (folder / "config.json").exists():
        raise AdapterSaveError(
            f"{folder} holds a model's own config.json, and an adapter in it would break that model; use another folder"
        )


def _file_tensors(config: AdapterConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the file, fp32 (C,): base_model.model.<module>.spear_gamma and .spear_beta of each RSP."""
    names = _file_keys(config)
    return {names[key][0]: value.detach().float().cpu().contiguous() for key, value in state.items()}


def _tensor_keys(boundary: Boundary) -> tuple[str, str]:
    """The keys of gamma and beta of one RSP, in the form that PEFT reads."""
    # a block may carry an RSP at its input and one at its output, so "in" is a part of the key
    where, part = "in_" if boundary.where == "in" else "", f".{boundary.part}" if boundary.part else ""
    stem = f"base_model.model.{boundary.module}.spear_{where}{{}}{part}"
    return stem.format("gamma"), stem.format("beta")


def _file_keys(config: AdapterConfig) -> dict[str, tuple[str, Boundary]]:
    """The key of a state ("0.gamma") -> its key in the file, and its boundary."""
    keys: dict[str, tuple[str, Boundary]] = {}
    for boundary in config.chosen:
        gamma, beta = _tensor_keys(boundary)
        keys |= {f"{boundary.key}.gamma": (gamma, boundary), f"{boundary.key}.beta": (beta, boundary)}
    return keys


# --- reading ------------------------------------------------------------------------------------------------------


def read_adapter(folder: str | Path) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """The configuration and the state ("0.gamma" -> (C,) fp32) of the adapter in `folder`.

    >>> import tempfile, timm
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.adapters.serialization import read_adapter
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config, state = read_adapter(model.save_pretrained(folder))
    >>> sorted(state)
    ['0.beta', '0.gamma', '1.beta', '1.gamma']

    Raises:
        AdapterFormatError, AdapterLoadError: a file or tensor is missing, unexpected, misshapen, not finite or too
            large.
    """
    config = read_config(folder)
    path = contained(folder, WEIGHTS_NAME)
    wanted = {file_key: (key, boundary) for key, (file_key, boundary) in _file_keys(config).items()}
    raw = _read(path)
    header = _header(raw, path)
    metadata = header.pop("__metadata__", {})
    if not config.matches_header(metadata.get("spear")) and metadata != _PEFT_METADATA:
        raise AdapterFormatError(f"{path} and {CONFIG_NAME} belong to different adapters; download or save both again")
    if header.keys() != wanted.keys():
        missing, unexpected = sorted(wanted.keys() - header.keys()), sorted(header.keys() - wanted.keys())
        raise AdapterLoadError(f"{path} lacks {missing} and has unexpected {unexpected}; download or save it again")
    for key, entry in header.items():
        channels = wanted[key][1].channels
        if entry.get("shape") != [channels] or entry.get("dtype") not in _DTYPES:
            raise AdapterLoadError(
                f"{key} is {entry.get('dtype')} of shape {entry.get('shape')}, expected a float tensor of shape "
                f"[{channels}]; load the adapter that was learned on this base"
            )
    try:
        tensors = load_tensors(raw)
    except Exception as error:  # SafetensorError, whose only base class is Exception
        raise AdapterFormatError(f"{path} cannot be read ({error}); download or save the adapter again") from error
    for key, value in tensors.items():
        if not bool(torch.isfinite(value).all()) or float(value.abs().max()) > MAX_ABS_VALUE:
            raise AdapterLoadError(
                f"{key} holds values that are not finite or above {MAX_ABS_VALUE:g}; load another copy of the adapter"
            )
    return config, {wanted[key][0]: value.float() for key, value in tensors.items()}


def _read(path: Path) -> bytes:
    if not path.is_file():
        other = [p.name for p in path.parent.glob("adapter_model.*")]
        hint = f"{other} is there, but only safetensors files are read" if other else "save_pretrained writes it"
        raise AdapterFormatError(f"there is no {path}; {hint}")
    size = path.stat().st_size
    if size > MAX_WEIGHTS_BYTES:
        raise AdapterFormatError(f"{path} has {size:,} bytes, and at most {MAX_WEIGHTS_BYTES:,} are read")
    try:
        return path.read_bytes()
    except OSError as error:
        raise AdapterFormatError(f"{path} cannot be read ({error.strerror}); check its permissions") from error


def _header(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file; AdapterFormatError for anything else."""
    try:
        (length,) = struct.unpack("<Q", raw[:8])
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length:,} bytes")
        header = json.loads(raw[8 : 8 + length])
        if not isinstance(header, dict) or not all(isinstance(v, dict) for v in header.values()):
            raise ValueError("its header is not an object of objects")
    except (struct.error, ValueError, RecursionError) as error:
        raise AdapterFormatError(f"{path} is not a safetensors file ({error}); download or save it again") from error
    return header
