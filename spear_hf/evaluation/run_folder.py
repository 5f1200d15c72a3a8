"""RunFolder: the files of a run. A kill at any moment leaves them readable, and a resumed run continues them.

runs/fog/report.json    the results, and everything that a rerun needs
runs/fog/steps.jsonl    a BatchRecord for each batch
runs/fog/clean.json     errors on clean images after each domain, where they were measured
runs/fog/adapters/      an adapter for each domain
runs/fog/checkpoint/    the states of `evaluate`

folder = RunFolder("runs/fog", model)
report = evaluate(methods, stream, on_batch=folder.append, checkpoint=folder.checkpoint)
folder.finish(report)
"""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.adapters.arithmetic import deviations
from spear_hf.errors import DataError
from spear_hf.evaluation.report import BatchRecord, Report
from spear_hf.steering.model import SpearModel
from spear_hf.utils.files import write_atomically
from spear_hf.utils.strict_json import strict_json

REPORT_NAME, STEPS_NAME, CLEAN_NAME = "report.json", "steps.jsonl", "clean.json"
LEARNED_NAME = "learned.safetensors"
_SEPARATOR = " | "  # between the domain and the key in the name of a tensor in learned.safetensors


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
        folder: made where it is missing; files of an earlier run are replaced.
        model: the model that learns, whose RSPs are measured and saved; None where no model is steered.
        every: batches between two writes of what was learned; give the `checkpoint_every` of `evaluate`.
        is_main: whether this process writes; False on all but one.

    Attributes:
        learned: domain -> the RSP values at its end.
    """

    def __init__(
        self, folder: str | Path, model: SpearModel | None = None, *, every: int = 50, is_main: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.model = model
        self.every = every
        self.is_main = is_main
        self.learned: dict[str, dict[str, Tensor]] = {}
        self._began = False
        self._domain: str | None = None

    @property
    def checkpoint(self) -> Path:
        """The folder for the states of `evaluate`."""
        return self.folder / "checkpoint"

    def adapter(self, domain: str) -> Path:
        """The folder for the adapter of a domain."""
        return self.folder / "adapters" / domain.replace("/", "-")

    def append(self, record: BatchRecord) -> None:
        """Write one line of steps.jsonl.

        The first line of a resumed run replaces the lines of its batch and of later ones, which a killed run left.
        """
        if not self.is_main:
            return
        if not self._began:
            self._begin(record.batch)
        state = {} if self.model is None else self.model.snapshot()
        if self._domain not in (None, record.domain):
            self._save_learned()
        line = _line(record if self.model is None else replace(record, deviations=by_boundary(state)))
        with (self.folder / STEPS_NAME).open("a", encoding="utf-8") as file:  # closed: a kill cuts at most this line
            file.write(line)
        self.learned[record.domain], self._domain = state, record.domain
        if (record.batch + 1) % self.every == 0:
            self._save_learned()

    def finish(self, report: Report) -> list[Path]:
        """Write report.json and an adapter for each domain; returns the adapters' folders.

        The clean.json of an earlier run is deleted.
        """
        if not self.is_main:
            return []
        if not self._began:
            self.learned = self._read_learned()  # a finished run that was started again has no batch left
        report.to_json(self.folder / REPORT_NAME)
        (self.folder / CLEAN_NAME).unlink(missing_ok=True)
        if self.model is None:
            return []
        last = self.model.snapshot()
        self.learned[report.rows[-1].domain if self._domain is None else self._domain] = last
        self._save_learned()
        folders = [self._save_adapter(self.model, domain, state) for domain, state in self.learned.items()]
        self.model.restore(last)
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
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
        for number, line in enumerate(lines[:-1], 1):
            try:
                records.append(BatchRecord.from_dict(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise DataError(
                    f"{path}, line {number}, is no record ({error!r}); run again, or remove that line"
                ) from error
        return records

    def _save_adapter(self, model: SpearModel, domain: str, state: dict[str, Tensor]) -> Path:
        model.restore(state)
        return model.save_pretrained(self.adapter(domain))

    def _begin(self, first: int) -> None:
        """Keep only the lines and the RSPs of the batches before `first`, where this run starts."""
        self.learned = self._read_learned() if first else {}
        kept = [record for record in self.read_steps() if record.batch < first] if first else []
        write_atomically(self.folder / STEPS_NAME, "".join(map(_line, kept)))
        self._began = True

    def _save_learned(self) -> None:
        tensors = {f"{d}{_SEPARATOR}{key}": v for d, state in self.learned.items() for key, v in state.items()}
        write_atomically(self.folder / LEARNED_NAME, save_tensors(tensors))

    def _read_learned(self) -> dict[str, dict[str, Tensor]]:
        path = self.folder / LEARNED_NAME
        found: dict[str, dict[str, Tensor]] = {}
        for name, value in (load_tensors(path.read_bytes()) if path.is_file() else {}).items():
            domain, key = name.split(_SEPARATOR)
            found.setdefault(domain, {})[key] = value
        return found


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
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is no report ({error}); run again, or take another folder") from error
