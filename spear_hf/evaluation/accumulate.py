"""MetricAccumulator: the running sums of a run. A Report is made from it, and a checkpoint saves it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.metrics import NUM_BINS, UNIT
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.learning.record import StepRecord


class MetricAccumulator:
    """Sums by domain and method. They are over all processes; seconds and memory are those of this process.

    >>> import torch
    >>> from spear_hf.evaluation.accumulate import MetricAccumulator
    >>> from spear_hf.evaluation.metrics import sums_over
    >>> metrics = MetricAccumulator(["source"])
    >>> sums = sums_over(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> metrics.add("fog/5", "source", sums.tolist(), total=2)
    >>> metrics.error("fog/5", "source")
    50.0

    Args:
        methods: their names.
    """

    def __init__(self, methods: Sequence[str]) -> None:
        self.methods = list(methods)
        self.seconds = dict.fromkeys(methods, 0.0)
        self.memory = dict.fromkeys(methods, 0)
        self.memory_kind = ""
        self.adaptation: dict[str, dict[str, int]] = {name: {} for name in methods}
        self._counts: dict[str, dict[str, _Counts]] = {}

    def add(self, domain: str, method: str, sums: Sequence[int], total: int, *, labelled: bool = True) -> None:
        """Add a batch of `total` images whose `sums_over` are `sums`; without labels it gives no errors.

        Raises:
            DataError: some batches of the domain have labels, and others have none.
        """
        counts = self._counts.setdefault(domain, {}).setdefault(method, _Counts(labelled=labelled))
        if counts.labelled is not labelled:
            raise DataError(
                f"some batches of {domain} have labels and others have none, so no error is that of all images; give "
                "labels for all, or for none (label_column=None)"
            )
        counts.add(sums, total)

    def error(self, domain: str, method: str) -> float:
        """The error so far, in percent; NaN before the first image."""
        return self._counts.get(domain, {}).get(method, _Counts()).error

    def add_cost(self, method: str, seconds: float, memory: int, memory_kind: str) -> None:
        """Add the seconds of a step, and keep the largest memory in bytes; `memory_kind` says what the bytes are."""
        self.seconds[method] += seconds
        self.memory[method] = max(self.memory[method], memory)
        self.memory_kind = memory_kind or self.memory_kind

    def add_step(self, method: str, record: Any) -> None:
        """Count what a step did; records that are not a StepRecord are ignored."""
        if not isinstance(record, StepRecord):
            return
        counted = {
            record.skipped or "adapted": True,
            "began a new domain": record.new_domain,
        }
        for what, happened in counted.items():
            if happened:
                self.adaptation[method][what] = self.adaptation[method].get(what, 0) + 1

    def report(self, provenance: dict[str, Any], parameters: dict[str, int]) -> Report:
        """The Report of everything added so far.

        Args:
            provenance: what a rerun needs.
            parameters: how many numbers each method learns.

        Raises:
            DataError: no batch was added.
        """
        if not self._counts:
            raise DataError("the stream gave no batch; check its limit, split and source")
        adaptation = {name: outcomes for name, outcomes in self.adaptation.items() if outcomes}
        return Report(
            [_result(domain, counts) for domain, counts in self._counts.items()],
            self.methods,
            provenance,
            self.seconds,
            adaptation,
            parameters=parameters,
            memory=self.memory if self.memory_kind else {},
            memory_kind=self.memory_kind,
        )

    def state_dict(self) -> dict[str, Any]:
        """All sums, JSON-ready."""
        counts = {domain: {name: asdict(c) for name, c in made.items()} for domain, made in self._counts.items()}
        costs = {"seconds": self.seconds, "memory": self.memory, "memory_kind": self.memory_kind}
        return {"counts": counts, **costs, "adaptation": self.adaptation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            CheckpointError: the state was saved by an earlier version, which counted errors only.
        """
        if "memory" not in state:
            raise CheckpointError(
                "this state was saved by an earlier version, which counted neither likelihood nor calibration; finish "
                "that run with the version that began it, or name another folder"
            )
        self._counts = {
            domain: {name: _Counts(**sums) for name, sums in made.items()} for domain, made in state["counts"].items()
        }
        self.seconds = dict(state["seconds"])
        self.memory = dict(state["memory"])
        self.memory_kind = state["memory_kind"]
        self.adaptation = {name: dict(outcomes) for name, outcomes in state["adaptation"].items()}


@dataclass
class _Counts:
    """The sums of one method in one domain; `nll`, `gaps` and `entropy` are in millionths, as in `sums_over`."""

    wrong: int = 0
    total: int = 0
    nll: int = 0
    gaps: list[int] = field(default_factory=lambda: [0] * NUM_BINS)
    entropy: int = 0
    changed: int = 0
    labelled: bool = True

    def add(self, sums: Sequence[int], total: int) -> None:
        self.wrong += sums[0]
        self.nll += sums[1]
        self.entropy += sums[2]
        self.changed += sums[3]
        self.gaps = [mine + new for mine, new in zip(self.gaps, sums[4:], strict=True)]
        self.total += total

    @property
    def error(self) -> float:
        """In percent; NaN without labels."""
        return 100 * self.wrong / self.total if self.total and self.labelled else float("nan")

    @property
    def mean_entropy(self) -> float:
        """Of the answers, in [0, 1], rounded to four decimals."""
        return round(self.entropy / UNIT / self.total, 4) if self.total else float("nan")

    @property
    def change(self) -> float:
        """Answers that differ from the first method's, in percent."""
        return 100 * self.changed / self.total if self.total else float("nan")

    @property
    def mean_nll(self) -> float:
        """In nats. Rounded to four decimals: further ones differ between one process and several."""
        return round(self.nll / UNIT / self.total, 4) if self.total else float("nan")

    @property
    def ece(self) -> float:
        """Expected calibration error in percent (Naeini et al. 2015, Guo et al. 2017), rounded to three decimals.

        The mean over images of |accuracy - mean confidence| in the image's bin of confidence.
        """
        return round(100 * sum(map(abs, self.gaps)) / UNIT / self.total, 3) if self.total else float("nan")


def _result(domain: str, counts: Mapping[str, _Counts]) -> DomainResult:
    labelled = {name: c for name, c in counts.items() if c.labelled}
    return DomainResult(
        domain,
        next(iter(counts.values())).total,
        {name: c.error for name, c in labelled.items()},
        {name: c.mean_nll for name, c in labelled.items()},
        {name: c.ece for name, c in labelled.items()},
        {name: c.mean_entropy for name, c in counts.items()},
        {name: c.change for name, c in counts.items()},
    )
