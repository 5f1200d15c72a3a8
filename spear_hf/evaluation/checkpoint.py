"""States of a run on disk: RSPs, moments, stream position and counts, a few kilobytes, whole or not there at all.

    runs/fog/checkpoint/step-00000150/state.json, state.safetensors

A folder is written under another name and then renamed, so a kill at any moment leaves the states before it intact.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.config import differences
from spear_hf.errors import CheckpointError
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.files import write_atomically

KEEP = 2


class Stateful(Protocol):
    """What a checkpoint holds the state of."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """The states of one run in one folder, the newest `KEEP` of them.

    Args:
        folder: made where it is missing; written by the main process alone.
        identity: JSON-ready facts that must be the same for a run to go on from a state here.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps({k: v for k, v in identity.items() if k != "processes"}))

    def save(self, done: int, parts: Mapping[str, Stateful]) -> Path:
        """Write the state after `done` batches; an interrupted or earlier one of the same name is not touched."""
        target = self.folder / f"step-{done:08d}"
        if target.exists():
            return target
        tensors: dict[str, Tensor] = {}
        state = {"identity": self.identity, "done": done} | {
            name: _packed(part.state_dict(), name, tensors) for name, part in parts.items()
        }
        unfinished = self.folder / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        write_atomically(unfinished / "state.safetensors", save_tensors(tensors))
        write_atomically(unfinished / "state.json", json.dumps(state, indent=1) + "\n")
        os.replace(unfinished, target)
        for old in self._states()[:-KEEP]:
            shutil.rmtree(old)
        return target

    def resume(self, processes: ProcessGroup, parts: Mapping[str, Stateful]) -> int:
        """Load the newest state into every part, on every process, and return how many batches it was saved after.

        Returns:
            0 where there is no state yet.

        Raises:
            CheckpointError: the newest state is of another run or cannot be read; on every process.
            SpearError: a part refuses its state, for it was configured otherwise.
        """
        state, error = None, None
        if processes.is_main:
            try:
                state = self._newest(parts)
            except CheckpointError as refusal:
                error = refusal
        state, error = processes.same((state, error))
        if error is not None:
            raise error
        if state is None:
            return 0
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return state["done"]

    def _states(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def _newest(self, parts: Mapping[str, Stateful]) -> dict[str, Any] | None:
        if not self._states():
            return None
        path = self._states()[-1]
        try:
            state = json.loads((path / "state.json").read_text())
            tensors = load_tensors((path / "state.safetensors").read_bytes())
            found, mine = state["identity"], self.identity
        except Exception as error:  # safetensors raises its own, which is no subclass of anything shared
            raise CheckpointError(
                f"{path} cannot be read ({error}); remove that folder to go on from the one before"
            ) from error
        differ = differences(found, mine)
        if missing := sorted(parts.keys() ^ (state.keys() - {"identity", "done"})):
            differ = f"{missing} are in only one of them"
        if differ:
            raise CheckpointError(f"{path} is of another run ({differ}); run that one, or name another folder")
        return {"done": state["done"]} | {name: _unpacked(state[name], tensors) for name in parts}


def _packed(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON that keeps keys which are not strings; its tensors go into `tensors`."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"items": [[k, _packed(v, f"{key}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_packed(v, f"{key}.{i}", tensors) for i, v in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"{key} is a {type(value).__name__}; a state holds tensors, numbers, strings, lists, dicts")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `_packed` was given; tuples come back as lists."""
    if isinstance(value, list):
        return [_unpacked(v, tensors) for v in value]
    if isinstance(value, dict) and "items" in value:
        return {k: _unpacked(v, tensors) for k, v in value["items"]}
    return tensors[value["tensor"]] if isinstance(value, dict) else value
