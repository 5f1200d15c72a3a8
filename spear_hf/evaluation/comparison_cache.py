"""The finished cells of a comparison, one JSON file each, so that a run that was killed goes on with the next one."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spear_hf.config import differences
from spear_hf.errors import CheckpointError
from spear_hf.evaluation.comparison import Cell
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.files import write_atomically


class ComparisonCache:
    """The cells in one folder.

    Args:
        folder: made when the first is kept; None keeps none.
        processes: all of them find the same cells; the main one alone reads and writes.
    """

    def __init__(self, folder: str | Path | None, processes: ProcessGroup) -> None:
        self.folder = None if folder is None else Path(folder)
        self.processes = processes

    def find(self, label: str, batch_size: int, identity: Mapping[str, Any]) -> Cell | None:
        """The cell that was kept under these facts; None where there is none.

        Raises:
            CheckpointError: its file is of another comparison, or cannot be read; on every process.
        """
        if self.folder is None:
            return None
        path = self._path(label, batch_size)
        found = self.processes.same(_read(path) if self.processes.is_main else None)
        if found is None:
            return None
        if differ := differences(found["identity"], json.loads(json.dumps(identity))):
            raise CheckpointError(
                f"{path} is of another comparison ({differ}); name another folder, or remove that file"
            )
        return Cell.from_dict(found["cell"])

    def keep(self, cell: Cell, identity: Mapping[str, Any]) -> None:
        """Write a cell that has a report; a refusal costs nothing, and is tried again."""
        if self.folder is not None and cell.report is not None and self.processes.is_main:
            entry = {"identity": identity, "cell": cell.to_dict()}
            write_atomically(self._path(cell.label, cell.batch_size), json.dumps(entry, indent=1) + "\n")

    def _path(self, label: str, batch_size: int) -> Path:
        name = re.sub(r"[^\w.=+-]+", "_", label)
        return Path(self.folder or "") / f"{name}-{batch_size}.json"


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"identity": {"file": f"not JSON, {error}"}}
