"""evaluate(methods, stream) -> Report: every method predicts each batch before it learns from it."""

from collections.abc import Callable, Mapping
from operator import length_hint
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from spear_hf.errors import DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.evaluation.cost import Meter
from spear_hf.evaluation.metrics import NUM_SUMS, answers_of, sums_over
from spear_hf.evaluation.report import BatchRecord, Report, versions
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup

_TRACKED = {
    "entropy": "gate/entropy",
    "adapted": "gate/adapted",
    "loss": "loss/total",
    "entropy_loss": "loss/entropy",
    "diversity_loss": "loss/diversity",
    "anchor_loss": "loss/anchor",
    "gamma_deviation": "rsp/gamma_deviation",
    "beta_deviation": "rsp/beta_deviation",
}
"""Field of a StepRecord -> its name in a tracker."""


class LabelledStream(Protocol):
    """What `evaluate` needs of a stream; `spear_hf.data.load_stream.load_stream` makes one.

    For several processes it also needs `shard(rank, count)`, and for checkpoints `state_dict` and `load_state_dict`.

    >>> import torch
    >>> from spear_hf.evaluation.evaluate import LabelledStream
    >>> class Batches(list):
    ...     protocol, describe = "single", lambda self: {}
    >>> x, y = torch.zeros(2, 3, 160, 160), torch.tensor([0, 1])
    >>> stream: LabelledStream = Batches([{"pixel_values": x, "labels": y, "domain": "clean", "is_domain_start": True}])
    """

    protocol: str

    def __iter__(self) -> Any: ...

    def describe(self) -> dict[str, Any]:
        """Everything that a rerun needs, JSON-ready."""
        ...


def evaluate(
    methods: Mapping[str, TTAMethod],
    stream: Any,
    *,
    accelerator: Any = None,
    device: Any = None,
    progress: bool = True,
    on_step: Callable[[str, StepRecord], None] | None = None,
    on_batch: Callable[[BatchRecord], None] | None = None,
    provenance: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    measure_memory: bool = False,
) -> Report:
    """The results of all methods on one stream. Each batch is predicted, counted, and only then learned from.

    Under the protocol "single" every method is reset before each domain; under others it keeps what it has learned.

    >>> import timm, torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.evaluation.evaluate import evaluate
    >>> class Batches(list):
    ...     protocol, describe = "single", lambda self: {}
    >>> x, y = torch.zeros(2, 3, 160, 160), torch.tensor([0, 1])
    >>> stream = Batches([{"pixel_values": x, "labels": y, "domain": "clean", "is_domain_start": True}])
    >>> report = evaluate({"source": Source(timm.create_model("test_resnet"))}, stream, progress=False)
    >>> report.rows[0].domain, report.images
    ('clean', 2)

    Args:
        methods: name -> method. Gains are those of the last over the first.
        stream: a whole `LabelledStream`. It yields dictionaries with pixel_values, labels, domain and is_domain_start.
        accelerator: for several processes: each takes its slice of every batch, and all return the same report. Give
            the methods the same accelerator. Its trackers get one record for each batch.
        device: where pixel_values are moved; by default the accelerator's device, or where they are.
        progress: whether the local main process shows a bar, with the running error of the first and the last method,
            the entropy and the gate.
        on_step: called with (domain, StepRecord) after each step of the last method, if it keeps records.
        on_batch: called with the BatchRecord of each batch on every process, before the state is saved; a `RunFolder`
            writes these records.
        provenance: further facts for the report; a checkpoint is used only if its facts are the same.
        checkpoint: a folder for states. A killed run continues from the newest one, with the same bits.
        checkpoint_every: batches between two states.
        measure_memory: whether to measure the memory that the largest step of each method takes; see `Meter`.

    Raises:
        DataError: no methods, a batch without labels, labels that do not fit the model, or a stream without a batch.
        CheckpointError: the folder holds states of another run.
    """
    if not methods:
        raise DataError("no methods were given; pass at least one, for example {'source': Source(model)}")
    processes, device = ProcessGroup(accelerator), device or getattr(accelerator, "device", None)
    if processes.count > 1:
        stream = stream.shard(processes.rank, processes.count)
    metrics = MetricAccumulator(list(methods))
    meter = Meter(methods, memory=measure_memory)
    parts: dict[str, Any] = {"stream": stream, "tally": metrics} | {f"method {name}": m for name, m in methods.items()}
    kept = None if checkpoint is None else Checkpoints(Path(checkpoint), provenance or {})
    done = 0 if kept is None else kept.resume(processes, parts)
    total = length_hint(stream) or None
    hidden = not progress or not getattr(accelerator, "is_local_main_process", True)
    with tqdm(stream, initial=done, total=total, unit="batch", disable=True if hidden else None) as bar:
        for batch in bar:
            if batch["is_domain_start"] and stream.protocol == "single":
                for method in methods.values():
                    method.reset()
            seen = _answer(done, batch, meter, metrics, processes, device, getattr(stream, "class_subset", None))
            errors = {name: metrics.error(seen.domain, name) for name in methods}
            bar.set_description(seen.domain, refresh=False)
            bar.set_postfix(_shown(errors, seen.step), refresh=False)
            if on_step is not None and seen.step is not None:
                on_step(seen.domain, seen.step)
            if on_batch is not None:
                on_batch(seen)
            if accelerator is not None:
                accelerator.log(_tracked(errors, seen.step), step=done)
            done += 1
            if kept is not None and done % checkpoint_every == 0 and processes.is_main:
                kept.save(done, parts)
    if kept is not None and processes.is_main:
        kept.save(done, parts)
    facts = {"stream": stream.describe(), "versions": versions()} | dict(provenance or {})
    parameters = {name: sum(p.numel() for p in method.parameters()) for name, method in methods.items()}
    return metrics.report(facts, parameters)


def _answer(
    number: int,
    batch: Mapping[str, Any],
    meter: Meter,
    metrics: MetricAccumulator,
    processes: ProcessGroup,
    device: Any,
    classes: Tensor | None,
) -> BatchRecord:
    """Let every method predict and learn from one batch, and add its sums over all processes to `metrics`."""
    labels, domain = batch.get("labels"), batch["domain"]
    if labels is None:
        raise DataError(
            "this stream has no labels, so no error can be counted; call method.step(pixel_values) yourself"
        )
    x: Tensor = batch["pixel_values"] if device is None else batch["pixel_values"].to(device)
    sums, logits, refusal = [], x, None
    for name in meter.methods:
        logits, seconds, memory = meter.step(name, x)
        metrics.add_cost(name, seconds, memory, meter.memory_kind)
        try:
            sums.append(sums_over(logits, labels, classes))
        except DataError as error:
            refusal = error  # raised below, on all processes: one that raised here would leave the others waiting
    total = processes.shard(len(labels), refusal).total
    histograms = [c.cpu().bincount(minlength=logits.shape[1]) for c in (answers_of(logits, classes), labels)]
    # one collective for all sums of all methods
    everywhere = processes.sum(torch.cat([*sums, *histograms]).to(x.device)).cpu()
    counted = everywhere[: NUM_SUMS * len(sums)].view(len(sums), NUM_SUMS).tolist()
    answers, truth = everywhere[NUM_SUMS * len(sums) :].chunk(2)
    for (name, method), values in zip(meter.methods.items(), counted, strict=True):
        metrics.add(domain, name, values, total)
        metrics.add_step(name, getattr(method, "last", None))
    wrong = {name: values[0] for name, values in zip(meter.methods, counted, strict=True)}
    last = getattr(list(meter.methods.values())[-1], "last", None)
    step = last if isinstance(last, StepRecord) else None
    return BatchRecord(number, domain, total, wrong, _present(answers), _present(truth), step)


def _present(counts: Tensor) -> dict[int, int]:
    """class -> count, for the classes that occur."""
    return {int(c): int(counts[c]) for c in counts.nonzero().flatten()}


def _shown(errors: Mapping[str, float], record: StepRecord | None) -> dict[str, str]:
    """The numbers behind the bar."""
    names = list(errors)
    shown = {name: f"{errors[name]:.1f}%" for name in dict.fromkeys((names[0], names[-1]))}
    if record is not None:
        shown |= {"H": f"{record.entropy:.2f}", "gate": "open" if record.adapted else "shut"}
    return shown


def _tracked(errors: Mapping[str, float], record: StepRecord | None) -> dict[str, float]:
    """The numbers for a tracker: the running error of each method in this domain, and those of the StepRecord."""
    values = {f"error/{name}": error for name, error in errors.items()}
    if record is not None:
        fields = record.to_dict()
        values |= {name: float(fields[key]) for key, name in _TRACKED.items() if fields[key] is not None}
    return values
