"""Checkpoints: the states of a run on disk, from which a killed run continues.

    runs/fog/checkpoint/step-00000150/state.json, state.safetensors

A state holds RSPs, optimizer moments, the position in the stream and the counts: a few kilobytes. It is written to a
folder of another name, which is then renamed: a kill at any moment leaves the earlier states whole.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.config import differences
from spear_hf.errors import CheckpointError, ConfigError, DataError, SpearError
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.files import write_atomically
from spear_hf.utils.folders import staged_folder
from spear_hf.utils.state_file import packed, unpacked
from spear_hf.utils.validation import first_line

KEEP = 2


class Stateful(Protocol):
    """Anything whose state a checkpoint can hold: a method, a stream, a MetricAccumulator.

    >>> from spear_hf.evaluation.accumulate import MetricAccumulator
    >>> from spear_hf.evaluation.checkpoint import Stateful
    >>> part: Stateful = MetricAccumulator(["source"])
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """The newest two states of one run, in one folder.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.evaluation.accumulate import MetricAccumulator
    >>> from spear_hf.evaluation.checkpoint import Checkpoints
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder), {"seed": 0})
    ...     path = checkpoints.save(20, {"metrics": MetricAccumulator(["source"])})
    ...     print(path.name, checkpoints.resume(ProcessGroup(), {"metrics": MetricAccumulator(["source"])}))
    step-00000020 20

    Args:
        folder: made where it is missing; only the main process writes.
        identity: JSON-ready facts; a run continues only from a state with the same facts.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps({k: v for k, v in identity.items() if k != "processes"}))

    def save(self, done: int, parts: Mapping[str, Stateful]) -> Path:
        """Write the state after `done` batches, unless it is there already; returns its folder.

        Raises:
            CheckpointError: a state holds something other than tensors, numbers, strings, lists and dictionaries.
            OutputError: the disk is full or read-only; the earlier states are kept.
        """
        target = self.folder / f"step-{done:08d}"
        if target.exists():
            return target
        tensors: dict[str, Tensor] = {}
        state = {"identity": self.identity, "done": done} | {
            name: packed(part.state_dict(), name, tensors) for name, part in parts.items()
        }
        with staged_folder(target) as unfinished:
            write_atomically(unfinished / "state.safetensors", save_tensors(tensors))
            write_atomically(unfinished / "state.json", json.dumps(state, indent=1) + "\n")
        for old in self._states()[:-KEEP]:
            shutil.rmtree(old)
        return target

    def resume(self, processes: ProcessGroup, parts: Mapping[str, Stateful]) -> int:
        """Load the newest state into every part, on every process.

        Returns:
            The number of batches after which it was saved; 0 where there is no state.

        Raises:
            CheckpointError: the newest state is of another run or cannot be read; on every process.
        """
        state, error = None, None
        if processes.is_main:
            try:
                state = self._newest(parts)
            except CheckpointError as refusal:  # raised below, on all processes: the others wait for the state
                error = refusal
        state, error = processes.same((state, error))
        if error is not None:
            raise error
        if state is None:
            return 0
        try:
            for name, part in parts.items():
                part.load_state_dict(state[name])
        except (KeyError, TypeError, ValueError, AttributeError) as refusal:
            if isinstance(refusal, SpearError) and not isinstance(refusal, (DataError, ConfigError)):
                raise
            raise CheckpointError(
                f"{self.folder} holds states of another run ({refusal}); run that one, or name another folder"
            ) from refusal
        return state["done"]

    def _states(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def _newest(self, parts: Mapping[str, Stateful]) -> dict[str, Any] | None:
        if not self._states():
            return None
        path = self._states()[-1]
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            tensors = load_tensors((path / "state.safetensors").read_bytes())
            found, mine = state["identity"], self.identity
            whole = {"done": state["done"]} | {name: unpacked(state[name], tensors) for name in parts if name in state}
            if not isinstance(found, dict) or not isinstance(state["done"], int) or state["done"] < 0:
                raise ValueError("it is not of this form")
        except Exception as error:  # safetensors raises its own class, which derives from Exception directly
            raise CheckpointError(
                f"{path} cannot be read ({first_line(error)}); remove that folder to go on from the one before"
            ) from error
        differ = differences(found, mine)
        if missing := sorted(parts.keys() ^ (state.keys() - {"identity", "done"})):
            differ = f"{missing} are in only one of them"
        if differ:
            raise CheckpointError(f"{path} is of another run ({differ}); run that one, or name another folder")
        return whole
