"""RunFolder: the files of a run. A kill at any moment leaves them readable, and a resumed run continues them.

runs/fog/report.json    the results, and everything that a rerun needs
runs/fog/steps.jsonl    a BatchRecord for each batch
runs/fog/clean.json     errors on clean images after each domain, where they were measured
runs/fog/adapters/      an adapter for each domain
runs/fog/checkpoint/    the states of `evaluate`, and with them what each domain taught

folder = RunFolder("runs/fog", model)
report = evaluate(methods, stream, on_batch=folder.append, checkpoint=folder.checkpoint, keep={"run folder": folder})
folder.finish(report)
"""

import hashlib
import json
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from spear_hf.adapters.adapter_config import CONFIG_NAME
from spear_hf.adapters.arithmetic import deviations
from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.report import BatchRecord, Report
from spear_hf.steering.model import SpearModel
from spear_hf.utils.files import sweep, write_atomically, writing
from spear_hf.utils.folder_lock import FolderLock
from spear_hf.utils.strict_json import strict_json

REPORT_NAME, STEPS_NAME, CLEAN_NAME = "report.json", "steps.jsonl", "clean.json"
PAGE_NAME, ADAPTERS_NAME = "report.html", "adapters"


class RunFolder:
    """Writes the results of `evaluate` batch by batch, and reads them back. The first write is at the first batch.

    >>> import tempfile
    >>> from spear_hf.evaluation.report import BatchRecord, DomainResult, Report
    >>> from spear_hf.evaluation.run_folder import RunFolder
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = RunFolder(name)
    ...     folder.append(BatchRecord(0, "fog/5", 8, {"source": 4}))
    ...     adapters = folder.finish(Report([DomainResult("fog/5", 8, {"source": 50.0})], ["source"]))
    ...     print(len(folder.read_steps()), folder.read_report().mean_error("source"))
    1 50.0

    Args:
        folder: made where it is missing; files of an earlier run are replaced. One process at a time writes to it.
        model: the model that learns, whose RSPs are measured and saved; None where no model is steered.
        is_main: whether this process writes; False on all but one.

    Attributes:
        learned: domain -> the RSP values at its end, in stream order.
        is_repeated: whether the run was finished before, and is shown again: no batch was left.
    """

    def __init__(self, folder: str | Path, model: SpearModel | None = None, *, is_main: bool = True) -> None:
        self.folder = Path(folder)
        self.model = model
        self.is_main = is_main
        self.learned: dict[str, dict[str, Tensor]] = {}
        self._began = False
        self._done = 0  # batches of this run before this process
        self._lock: FolderLock | None = None

    @property
    def checkpoint(self) -> Path:
        """The folder for the states of `evaluate`."""
        return self.folder / "checkpoint"

    @property
    def is_repeated(self) -> bool:
        """Whether the run was finished before: it is shown again, and no batch was answered."""
        return self._done > 0 and not self._began

    def adapter(self, domain: str) -> Path:
        """The folder for the adapter of a domain; two domains never share one.

        >>> from spear_hf.evaluation.run_folder import RunFolder
        >>> RunFolder("runs").adapter("fog/5").as_posix()
        'runs/adapters/fog-5'
        """
        flat = domain.replace("/", "-")
        plain = re.sub(r"[^\w .+=-]", "-", flat)[:100].strip(" .")
        if plain != flat or any(other != domain and other.replace("/", "-") == flat for other in self.learned):
            plain = f"{plain or 'domain'}-{hashlib.sha256(domain.encode(errors='surrogateescape')).hexdigest()[:8]}"
        return self.folder / ADAPTERS_NAME / plain

    def lock(self) -> None:
        """Keep other processes out until `unlock`, `finish`, or the end of this process, and remove what a kill left.

        Raises:
            OutputError: another process writes to the folder, or it cannot be written to.
        """
        if self._lock is None:
            self._lock = FolderLock(self.folder)
            sweep(self.folder)

    def unlock(self) -> None:
        """Let other processes write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def clear(self) -> None:
        """Delete all of an earlier run; other files in the folder stay."""
        self._clear_results()
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for path in self.folder.glob("predictions.*"):
            path.unlink()

    def _clear_results(self) -> None:
        for name in (REPORT_NAME, STEPS_NAME, CLEAN_NAME, PAGE_NAME):
            (self.folder / name).unlink(missing_ok=True)
        self._remove_adapters(keep=[])

    def _remove_adapters(self, keep: list[Path]) -> None:
        for config in self.folder.glob(f"{ADAPTERS_NAME}/*/{CONFIG_NAME}"):
            if config.parent not in keep and not config.parent.is_symlink():
                shutil.rmtree(config.parent)
        with suppress(OSError):  # it holds adapters, or is not there
            (self.folder / ADAPTERS_NAME).rmdir()

    def append(self, record: BatchRecord) -> None:
        """Write one line of steps.jsonl.

        The first line of a resumed run replaces the lines of its batch and of later ones, which a killed run left.

        Raises:
            CheckpointError: the run is resumed, and the file lacks earlier lines.
            OutputError: the folder cannot be written to, or another process writes to it.
        """
        if not self.is_main:
            return
        if not self._began:
            self._begin(record.batch)
        state = {} if self.model is None else self.model.snapshot()
        line = _line(record if self.model is None else replace(record, deviations=by_boundary(state)))
        path = self.folder / STEPS_NAME
        with writing(path), path.open("a", encoding="utf-8") as file:  # closed: a kill cuts at most this line
            file.write(line)
        self.learned.pop(record.domain, None)  # the order is that in which domains end
        self.learned[record.domain] = state
        self._done = record.batch + 1

    def state_dict(self) -> dict[str, Any]:
        """What each domain taught so far, for a checkpoint."""
        return {"batches": self._done, "learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._done, self.learned = state["batches"], {name: dict(kept) for name, kept in state["learned"].items()}

    def finish(self, report: Report) -> list[Path]:
        """Write report.json and an adapter for each domain; returns the adapters' folders.

        Adapters of an earlier run are deleted, and its clean.json, unless the same run is shown again.

        Raises:
            CheckpointError: the run is shown again, and lines of steps.jsonl are missing.
            OutputError: the folder cannot be written to.
        """
        if not self.is_main:
            return []
        self.lock()
        try:
            return self._finish(report)
        finally:
            self.unlock()

    def _finish(self, report: Report) -> list[Path]:
        if self.is_repeated:
            self._check_lines(self.read_steps(), self._done)
        else:
            (self.folder / CLEAN_NAME).unlink(missing_ok=True)
        report.to_json(self.folder / REPORT_NAME)
        if self.model is None:
            return []
        last = self.model.snapshot()
        in_order = {row.domain: self.learned[row.domain] for row in report.rows if row.domain in self.learned}
        self.learned = in_order | self.learned
        folders = [self._save_adapter(self.model, domain, state) for domain, state in self.learned.items()]
        self.model.restore(last)
        if self.learned:
            self._remove_adapters(keep=folders)
        return folders

    def keep_clean(self, report: Report) -> None:
        """Write clean.json, the report of `clean_along`; call it after `finish`."""
        if self.is_main:
            report.to_json(self.folder / CLEAN_NAME)

    def read_report(self) -> Report:
        """The report in report.json.

        Raises:
            DataError: there is none, or the file is not a report.
        """
        if not (self.folder / REPORT_NAME).is_file():
            raise DataError(
                f"{self.folder} holds no {REPORT_NAME}; a run folder is what `spear-hf adapt --output` finishes"
            )
        return _read_report(self.folder / REPORT_NAME)

    def read_clean(self) -> Report | None:
        """The report in clean.json; None where clean images were not measured.

        Raises:
            DataError: the file is not a report.
        """
        path = self.folder / CLEAN_NAME
        return _read_report(path) if path.is_file() else None

    def read_steps(self) -> list[BatchRecord]:
        """The records in steps.jsonl, in stream order; empty where there is no file.

        A last line without its end is left out: a kill may have cut it.

        Raises:
            DataError: an earlier line is not a record.
        """
        path, records = self.folder / STEPS_NAME, []
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
        for number, line in enumerate(lines[:-1], 1):
            try:
                records.append(BatchRecord.from_dict(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}, is no record ({error!r}); run again, or remove that line"
                ) from error
        return records

    def _save_adapter(self, model: SpearModel, domain: str, state: dict[str, Tensor]) -> Path:
        model.restore(state)
        return model.save_pretrained(self.adapter(domain))

    def _begin(self, first: int) -> None:
        """Keep only the lines of the batches before `first`, where this run starts; of a new run, nothing."""
        self.lock()
        kept = [record for record in self.read_steps() if record.batch < first] if first else []
        if first:
            self._check_lines(kept, first)
        else:
            self.learned = {}
            self._clear_results()
        write_atomically(self.folder / STEPS_NAME, "".join(map(_line, kept)))
        self._began = True

    def _check_lines(self, records: list[BatchRecord], first: int) -> None:
        if [record.batch for record in records] != list(range(first)):
            raise CheckpointError(
                f"{self.folder / STEPS_NAME} does not hold the {first} batches that were answered before, each once; "
                "remove the folder to start again"
            )


def by_boundary(state: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """boundary key -> (||gamma - 1||, ||beta||) of its RSP.

    >>> import torch
    >>> from spear_hf.evaluation.run_folder import by_boundary
    >>> by_boundary({"0.gamma": torch.ones(4), "0.beta": torch.full((4,), 0.5)})
    {'0': (0.0, 1.0)}

    Args:
        state: RSP values, as `SpearModel.snapshot` gives them.
    """
    keys = dict.fromkeys(name.rsplit(".", 1)[0] for name in state)
    return {key: deviations({n: v for n, v in state.items() if n.rsplit(".", 1)[0] == key}) for key in keys}


def _line(record: BatchRecord) -> str:
    return strict_json(record.to_dict()) + "\n"


def _read_report(path: Path) -> Report:
    try:
        return Report.from_json(path)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is no report ({error}); run again, or take another folder") from error
