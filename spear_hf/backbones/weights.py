"""The weights in a file of any usual kind, and how they are put on a model.

weights = read_weights("runs/model_best.pth.tar")       # safetensors, .pth, .pt, .bin, .pth.tar, .ckpt
put_weights(model, weights, "runs/model_best.pth.tar")  # strict; prefixes such as "module." are found
"""

import argparse
import collections
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spear_hf.errors import ModelNotFoundError
from spear_hf.utils.validation import first_line, first_of

ENTRIES = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
PICKLES = (".pth", ".pt", ".bin", ".tar", ".ckpt", ".pkl", ".pyth")
SHOWN = 3  # keys of each kind in an error


def read_weights(path: str | Path, entry: str | None = None) -> dict[str, Tensor]:
    """key -> tensor of a checkpoint; nothing in the file is run.

    >>> import tempfile, torch
    >>> from spear_hf.backbones.weights import read_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3, "state_dict": {"module.fc.bias": torch.zeros(2)}}, f"{folder}/best.pth.tar")
    ...     list(read_weights(f"{folder}/best.pth.tar"))
    ['module.fc.bias']

    Args:
        path: a safetensors file, a file of `torch.save`, or a folder that holds model.safetensors or pytorch_model.bin.
        entry: the entry of the file that holds the weights; None finds it.

    Raises:
        ModelNotFoundError: no such file, a file that holds objects other than weights, or several entries that could be
            meant.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path = next((path / name for name in FOLDER_FILES if (path / name).is_file()), path)
    if not path.is_file():
        raise ModelNotFoundError(
            f"there is no checkpoint {path}; give a file of weights (safetensors, .pth, .pth.tar, .ckpt), or none for "
            "the name's own weights"
        )
    if path.suffix not in PICKLES:
        return _read_safetensors(path)
    return _state_in(_read_pickle(path), path, entry)


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> list[str]:
    """Load weights strictly; returns the keys of the file that are not of the model's (a loss, a second network).

    A prefix of all keys, as DistributedDataParallel ("module."), torch.compile and Lightning ("model.") add it, is
    taken off.

    >>> import torch
    >>> from spear_hf.backbones.weights import put_weights
    >>> put_weights(torch.nn.Linear(1, 1), {"module.weight": torch.ones(1, 1), "module.bias": torch.ones(1)}, "w.pth")
    []

    Args:
        path: named in an error.

    Raises:
        ModelNotFoundError: keys or shapes that differ; the message names the first ones. The model is unchanged.
    """
    own = model.state_dict()
    prefix = _prefix(own, weights)
    found = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    missing = [key for key in own if key not in found and not key.endswith("num_batches_tracked")]
    unknown = [key for key in found if key not in own]
    shapes = [key for key in own if key in found and found[key].shape != own[key].shape]
    if missing or unknown or shapes:
        reasons = [
            _some("the model has {} that the file lacks", missing),
            _some("the file has {} that the model lacks", [prefix + key for key in unknown]),
            *(
                f"{key} is {tuple(found[key].shape)} in the file and {tuple(own[key].shape)} in the model"
                for key in shapes[:SHOWN]
            ),
        ]
        raise ModelNotFoundError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(filter(None, reasons))}; "
            "give the name of the architecture that these weights were trained with"
        )
    tracked = {key: own[key] for key in own if key not in found}  # counters that old files do not have
    model.load_state_dict(tracked | found)
    return [key for key in weights if not key.startswith(prefix)]


def classes_in(model: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """The number of classes of the weights where only the head differs from the model's; None where it does not.

    >>> import torch
    >>> from spear_hf.backbones.weights import classes_in
    >>> head = torch.nn.Linear(4, 1000)
    >>> classes_in(head, {"weight": torch.zeros(7, 4), "bias": torch.zeros(7)})
    7
    """
    own = model.state_dict()
    prefix = _prefix(own, weights)
    pairs = [(value.shape, weights[prefix + key].shape) for key, value in own.items() if prefix + key in weights]
    differ = {(ours[:1], theirs[:1], ours[1:] == theirs[1:]) for ours, theirs in pairs if ours != theirs}
    if len(differ) != 1:
        return None
    ((_, theirs, same_otherwise),) = differ
    return int(theirs[0]) if same_otherwise and theirs else None


def check_weights(model: nn.Module, name: str) -> None:
    """Raise ModelNotFoundError where a parameter holds NaN: every answer of such a model would be NaN.

    >>> import torch
    >>> from spear_hf.backbones.weights import check_weights
    >>> check_weights(torch.nn.Linear(2, 2), "net")
    """
    for key, value in model.named_parameters():
        if value.is_floating_point() and not value.is_meta and bool(value.isnan().any()):
            raise ModelNotFoundError(
                f"{name} has NaN in {key}, so the model's logits are not finite; train it again, or give other weights"
            )


def _prefix(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """What stands before the model's keys in the file: the text that makes most of them equal."""
    first = next(iter(own), "")
    prefixes = {"", *(key[: -len(first)] for key in weights if first and key.endswith(f".{first}"))}
    return max(sorted(prefixes), key=lambda prefix: sum(prefix + key in weights for key in own))


def _some(text: str, keys: list[str]) -> str:
    """The text with the first keys in it; empty without keys."""
    return text.format(first_of(keys, SHOWN)) if keys else ""


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelNotFoundError(
            f"{path} is no safetensors file ({first_line(error)}); a file of torch.save ends in {', '.join(PICKLES)}"
        ) from error


def _read_pickle(path: Path) -> Any:
    """The object in a file of `torch.save`: tensors, numbers, containers, and the options of a training script."""
    try:
        with torch.serialization.safe_globals(_harmless()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelNotFoundError(
            f"{path} holds objects of other classes than weights, and loading them could run code; load the file where "
            "it was made and save the weights alone: torch.save(model.state_dict(), 'weights.pth')"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise ModelNotFoundError(
            f"{path} is no file of torch.save ({first_line(error)}); copy it again, or give another one"
        ) from error


def _harmless() -> list[Any]:
    """Classes that training scripts store beside the weights; none of them runs code when it is loaded."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(name)) for name in ("float64", "float32", "int64", "int32", "bool")}
    old = [(scalar, "numpy.core.multiarray.scalar"), scalar]
    return [argparse.Namespace, collections.defaultdict, np.dtype, *kinds, *old]


def _state_in(data: Any, path: Path, entry: str | None) -> dict[str, Tensor]:
    """The entry of a checkpoint that maps keys to tensors."""
    if entry is not None:
        found: Any = data.get(entry) if isinstance(data, Mapping) else None
        if not _is_state(found):
            raise ModelNotFoundError(f"{path} has no weights under {entry!r}; {_entries(data)}")
        return dict(found)
    if _is_state(data):
        return dict(data)
    entries = data.items() if _is_map(data) else ()
    held: dict[str, dict[str, Tensor]] = {k: dict(v) for k, v in entries if k in ENTRIES + AVERAGED and _is_state(v)}
    if len(held) > 1:
        raise ModelNotFoundError(
            f"{path} holds several sets of weights, {', '.join(held)}; choose one with checkpoint_entry="
        )
    if not held:
        raise ModelNotFoundError(f"{path} holds no weights that this package can find; {_entries(data)}")
    return next(iter(held.values()))


def _entries(data: Any) -> str:
    if not _is_map(data):
        return f"it holds a {type(data).__name__}; save model.state_dict()"
    sets = [key for key, value in data.items() if _is_state(value)]
    return f"name the entry with checkpoint_entry=, one of {sets or list(map(str, data))[:8]}"


def _is_map(data: Any) -> bool:
    return isinstance(data, Mapping)


def _is_state(data: Any) -> bool:
    """Whether it maps names to tensors."""
    return isinstance(data, Mapping) and bool(data) and all(isinstance(value, Tensor) for value in data.values())
