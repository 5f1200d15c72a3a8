"""Tally: what a run has counted so far; a Report is made of it, and a checkpoint holds it."""

from typing import Any

from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.cost import Cost
from spear_hf.evaluation.metrics import Counts, DomainCounts
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.learning.record import StepRecord


class MetricAccumulator:
    """Counts over all processes, so the same on each of them; seconds and memory are this process's.

    Args:
        methods: their names.
    """

    def __init__(self, methods: list[str]) -> None:
        self.methods = methods
        self.counts = DomainCounts()
        self.seconds = dict.fromkeys(methods, 0.0)
        self.memory = dict.fromkeys(methods, 0)
        self.memory_kind = ""
        self.adaptation: dict[str, dict[str, int]] = {name: {} for name in methods}

    def charge(self, method: str, cost: Cost) -> None:
        """Add the seconds of a step, and keep the most memory."""
        self.seconds[method] += cost.seconds
        self.memory[method] = max(self.memory[method], cost.memory)
        self.memory_kind = cost.memory_kind or self.memory_kind

    def note(self, method: str, record: Any) -> None:
        """Count what a step did, where the method keeps a StepRecord."""
        if not isinstance(record, StepRecord):
            return
        counted = {
            record.skipped or "adapted": True,
            "began a new domain": record.new_domain,
            "without the source's statistics": record.whole_statistics,
        }
        for what, happened in counted.items():
            if happened:
                self.adaptation[method][what] = self.adaptation[method].get(what, 0) + 1

    def report(self, provenance: dict[str, Any], parameters: dict[str, int]) -> Report:
        """The figures as they stand.

        Args:
            provenance: what a rerun needs.
            parameters: how many numbers each method learns.

        Raises:
            DataError: there are none.
        """
        if not self.counts.counts:
            raise DataError("the stream gave no batch; check its limit, split and source")
        adaptation = {name: outcomes for name, outcomes in self.adaptation.items() if outcomes}
        return Report(
            [_row(domain, cells) for domain, cells in self.counts.counts.items()],
            self.methods,
            provenance,
            self.seconds,
            adaptation,
            parameters=parameters,
            memory=self.memory if self.memory_kind else {},
            memory_kind=self.memory_kind,
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        counts = {
            domain: {name: [cell.wrong, cell.total, cell.nll, cell.gaps] for name, cell in cells.items()}
            for domain, cells in self.counts.counts.items()
        }
        costs = {"seconds": self.seconds, "memory": self.memory, "memory_kind": self.memory_kind}
        return {"counts": counts, **costs, "adaptation": self.adaptation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a `state_dict`.

        Raises:
            CheckpointError: one of an earlier version, which counted errors alone.
        """
        if "memory" not in state:
            raise CheckpointError(
                "this state was saved by an earlier version, which counted neither likelihood nor calibration; finish "
                "that run with the version that began it, or name another folder"
            )
        for domain, cells in state["counts"].items():
            self.counts.counts[domain] = {
                name: Counts(wrong, total, nll, list(gaps)) for name, (wrong, total, nll, gaps) in cells.items()
            }
        self.seconds = dict(state["seconds"])
        self.memory = dict(state["memory"])
        self.memory_kind = state["memory_kind"]
        self.adaptation = {name: dict(outcomes) for name, outcomes in state["adaptation"].items()}


def _row(domain: str, cells: dict[str, Counts]) -> DomainResult:
    return DomainResult(
        domain,
        next(iter(cells.values())).total,
        {name: cell.error for name, cell in cells.items()},
        {name: cell.mean_nll for name, cell in cells.items()},
        {name: cell.ece for name, cell in cells.items()},
    )
