"""A nested state as JSON and tensors, apart or in one file: what checkpoints and saved streams have in common."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.errors import CheckpointError
from spear_hf.utils.files import write_atomically

MAX_STATE_BYTES = 256_000_000
_ENTRY = "spear_state"


def packed(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """`value` for JSON, which keeps keys that are not strings; its tensors go into `tensors`.

    Args:
        value: tensors, numbers, strings, lists and mappings, nested in any way.
        key: names the value in messages and the tensors in it.
        tensors: gets a copy of each tensor, on the CPU.

    Raises:
        CheckpointError: a value of another type.

    >>> tensors = {}
    >>> packed({0: [1.5, "fog"]}, "state", tensors)
    {'items': [[0, [1.5, 'fog']]]}
    """
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"items": [[k, packed(v, f"{key}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [packed(v, f"{key}.{i}", tensors) for i, v in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"{key} is a {type(value).__name__}; a state holds tensors, numbers, strings, lists, dicts")


def unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `packed` was given; tuples come back as lists.

    >>> unpacked({"items": [[0, [1.5, "fog"]]]}, {})
    {0: [1.5, 'fog']}
    """
    if isinstance(value, list):
        return [unpacked(v, tensors) for v in value]
    if isinstance(value, dict) and "items" in value:
        return {k: unpacked(v, tensors) for k, v in value["items"]}
    return tensors[value["tensor"]] if isinstance(value, dict) else value


def write_state(path: str | Path, state: Mapping[str, Any], facts: Mapping[str, Any], *, durable: bool = True) -> Path:
    """The path, after state and facts were written to it as one safetensors file, all or nothing.

    Two files could be of different moments after a kill; the JSON part is in the header of the one file instead.

    Args:
        state: as for `packed`.
        facts: JSON-ready.
        durable: as for `write_atomically`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_state(write_state(f"{folder}/a.safetensors", {"steps": 3}, {"name": "cam-1"}))
    ({'steps': 3}, {'name': 'cam-1'})
    """
    tensors: dict[str, Tensor] = {}
    header = json.dumps({"facts": dict(facts), "state": packed(state, "state", tensors)}, allow_nan=False)
    return write_atomically(path, save_tensors(tensors, {_ENTRY: header}), durable=durable)


def read_state(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the facts that `write_state` wrote.

    Raises:
        CheckpointError: no such file, or one of another form.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}; StreamState.save writes one")
    if path.stat().st_size > MAX_STATE_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes, at most {MAX_STATE_BYTES:,} are read")
    try:
        header = _header(path)
        return unpacked(header["state"], load_tensors(path.read_bytes())), header["facts"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no saved state ({error}); save it again") from error


def read_facts(path: str | Path) -> dict[str, Any]:
    """The facts alone; no tensor is read.

    Raises:
        CheckpointError: no such file, or one of another form.
    """
    try:
        return _header(Path(path))["facts"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no saved state ({error}); save it again") from error


def _header(path: Path) -> dict[str, Any]:
    """The JSON part: a safetensors file begins with the length of its header, 8 bytes, and the header as JSON."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_STATE_BYTES:
            raise ValueError(f"a header of {size:,} bytes")
        return json.loads(json.loads(file.read(size))["__metadata__"][_ENTRY])
