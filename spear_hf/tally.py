"""Tally: what a run has counted so far; a Report is made of it, and a checkpoint holds it."""

from typing import Any

from spear_hf.adapt import StepRecord
from spear_hf.errors import DataError
from spear_hf.metrics import DomainCounts, ErrorCount
from spear_hf.report import DomainResult, Report


class Tally:
    """Counts over all processes, so the same on each of them; seconds are this process's.

    Args:
        methods: their names.
    """

    def __init__(self, methods: list[str]) -> None:
        self.methods = methods
        self.counts = DomainCounts()
        self.seconds = dict.fromkeys(methods, 0.0)
        self.adaptation: dict[str, dict[str, int]] = {name: {} for name in methods}

    def note(self, method: str, record: Any) -> None:
        """Count what a step did, where the method keeps a StepRecord."""
        if isinstance(record, StepRecord):
            outcome = record.skipped or "adapted"
            self.adaptation[method][outcome] = self.adaptation[method].get(outcome, 0) + 1

    def report(self, provenance: dict[str, Any]) -> Report:
        """The figures as they stand.

        Raises:
            DataError: there are none.
        """
        if not self.counts.counts:
            raise DataError("the stream gave no batch; check its limit, split and source")
        rows = [
            DomainResult(domain, next(iter(cells.values())).total, {name: cell.error for name, cell in cells.items()})
            for domain, cells in self.counts.counts.items()
        ]
        adaptation = {name: outcomes for name, outcomes in self.adaptation.items() if outcomes}
        return Report(rows, self.methods, provenance, self.seconds, adaptation)

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        counts = {
            domain: {name: [cell.wrong, cell.total] for name, cell in cells.items()}
            for domain, cells in self.counts.counts.items()
        }
        return {"counts": counts, "seconds": self.seconds, "adaptation": self.adaptation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a `state_dict`."""
        for domain, cells in state["counts"].items():
            self.counts.counts[domain] = {name: ErrorCount(wrong, total) for name, (wrong, total) in cells.items()}
        self.seconds = dict(state["seconds"])
        self.adaptation = {name: dict(outcomes) for name, outcomes in state["adaptation"].items()}
