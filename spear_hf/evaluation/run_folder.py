"""The folder of a run, which a kill at any moment leaves readable and a resumed run goes on with.

runs/fog/report.json    what came out, and all that a rerun needs
runs/fog/steps.jsonl    a BatchRecord for each batch
runs/fog/adapters/      what each domain taught, one adapter for each
runs/fog/checkpoint/    states of `evaluate`

folder = RunFolder("runs/fog", model)
report = evaluate(methods, stream, on_batch=folder.append, checkpoint=folder.checkpoint)
folder.finish(report)
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spear_hf.adapters.arithmetic import deviations
from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.report import Report
from spear_hf.evaluation.run import CLEAN_NAME, REPORT_NAME, STEPS_NAME, read_steps
from spear_hf.steering.model import SpearModel
from spear_hf.utils.files import write_atomically

LEARNED_NAME = "learned.safetensors"
_BETWEEN = " | "  # domain and key of a learned tensor


class RunFolder:
    """Writes down what `evaluate` tells of each batch; nothing is written before the first one.

    Args:
        folder: made where it is missing; what an earlier run left there is replaced as this one goes.
        model: the one that learns, for deviations and adapters; None for a run in which nothing is steered.
        every: batches between two states of what was learned; the `checkpoint_every` of `evaluate`.
        is_main: False on the processes that are to write nothing.

    Attributes:
        learned: domain -> the RSPs as it left them.
    """

    def __init__(
        self, folder: str | Path, model: SpearModel | None = None, *, every: int = 50, is_main: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.model = model
        self.every = every
        self.is_main = is_main
        self.learned: dict[str, dict[str, Tensor]] = {}
        self._steps: TextIO | None = None
        self._domain: str | None = None

    @property
    def checkpoint(self) -> Path:
        """Where the states of `evaluate` go."""
        return self.folder / "checkpoint"

    def append(self, record: BatchRecord) -> None:
        """Write one line; the first one of a resumed run takes the place of all that a kill left from there on."""
        if not self.is_main:
            return
        if self._steps is None:
            self._steps = self._open(record.batch)
        state = {} if self.model is None else self.model.snapshot()
        if self._domain not in (None, record.domain):
            self._keep_learned()
        self._steps.write(_line(replace(record, deviations=by_boundary(state))))
        self.learned[record.domain], self._domain = state, record.domain
        if (record.batch + 1) % self.every == 0:
            self._keep_learned()

    def finish(self, report: Report) -> list[Path]:
        """Write report.json, and an adapter for each domain; returns the adapters' folders.

        What an earlier run measured on clean images goes: `keep_clean` writes it anew.
        """
        if not self.is_main:
            return []
        if self._steps is None:
            self.learned = self._kept()  # a finished run that was started again has no batch left
        else:
            self._steps.close()
        report.to_json(self.folder / REPORT_NAME)
        (self.folder / CLEAN_NAME).unlink(missing_ok=True)
        if self.model is None:
            return []
        last = self.model.snapshot()
        self.learned[report.rows[-1].domain if self._domain is None else self._domain] = last
        self._keep_learned()
        folders = [self._save_adapter(self.model, domain, state) for domain, state in self.learned.items()]
        self.model.restore(last)
        return folders

    def keep_clean(self, report: Report) -> None:
        """Write clean.json, which `clean_along` measured."""
        if self.is_main:
            report.to_json(self.folder / CLEAN_NAME)

    def adapter(self, domain: str) -> Path:
        """Where the adapter of a domain goes."""
        return self.folder / "adapters" / domain.replace("/", "-")

    def _save_adapter(self, model: SpearModel, domain: str, state: dict[str, Tensor]) -> Path:
        model.restore(state)
        return model.save_pretrained(self.adapter(domain))

    def _open(self, first: int) -> TextIO:
        """steps.jsonl, open at its end, with the lines of the batches before `first` and no others."""
        path = self.folder / STEPS_NAME
        self.learned = self._kept() if first else {}
        kept = [record for record in read_steps(path) if record.batch < first] if first else []
        write_atomically(path, "".join(map(_line, kept)))
        return path.open("a", buffering=1, encoding="utf-8")

    def _keep_learned(self) -> None:
        tensors = {f"{d}{_BETWEEN}{key}": v for d, state in self.learned.items() for key, v in state.items()}
        write_atomically(self.folder / LEARNED_NAME, save_tensors(tensors))

    def _kept(self) -> dict[str, dict[str, Tensor]]:
        path = self.folder / LEARNED_NAME
        found: dict[str, dict[str, Tensor]] = {}
        for name, value in (load_tensors(path.read_bytes()) if path.is_file() else {}).items():
            domain, key = name.split(_BETWEEN)
            found.setdefault(domain, {})[key] = value
        return found


def by_boundary(state: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """||gamma - 1|| and ||beta|| of each RSP in a snapshot, by boundary key."""
    keys = dict.fromkeys(name.rsplit(".", 1)[0] for name in state)
    return {key: deviations({n: v for n, v in state.items() if n.rsplit(".", 1)[0] == key}) for key in keys}


def _line(record: BatchRecord) -> str:
    return json.dumps(record.to_dict()) + "\n"
