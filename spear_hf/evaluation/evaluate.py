"""evaluate(methods, stream) -> Report: every method answers the same batches, in the same order, before it learns."""

from collections.abc import Callable, Mapping
from operator import length_hint
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from spear_hf.errors import DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.batch_record import BatchRecord, class_counts, present
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.evaluation.cost import Meter
from spear_hf.evaluation.metrics import NUM_SUMS, answers_of, sums_over
from spear_hf.evaluation.report import DomainResult, Report, versions
from spear_hf.evaluation.tracking import tracked
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup

__all__ = ["DomainResult", "Report", "Stream", "evaluate"]


class Stream(Protocol):
    """What `evaluate` needs of a stream; `spear_hf.data.stream.load_stream` makes one.

    For several processes it also needs `shard(rank, count)`, and for checkpoints `state_dict` and `load_state_dict`.
    """

    protocol: str

    def __iter__(self) -> Any: ...

    def describe(self) -> dict[str, Any]:
        """Everything a rerun needs, JSON-ready."""
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
    """Run a stream through every method at once: each batch is answered, counted, and only then learned from.

    Under the protocol "single" every method is reset before each domain; otherwise it goes on from what it has learned.

    Args:
        methods: name -> method; the first is the one that gains are counted from, the last the one the bar shows.
        stream: a whole `Stream`; it yields dictionaries with pixel_values, labels, domain and is_domain_start.
        accelerator: under several processes each takes its slice of every batch, and all return the same report; give
            the methods the same one. Its trackers get one record for each batch.
        device: where pixel_values go; the accelerator's by default, or else where they are.
        progress: a bar with the running error of the first and the last method, the entropy and the gate; on the local
            main process.
        on_step: called with (domain, StepRecord) after each step of the last method, where it keeps records.
        on_batch: called with the BatchRecord of each batch, the same on every process, before its state is saved; a
            `RunFolder` writes them down.
        provenance: further facts for the report; a checkpoint is of exactly these.
        checkpoint: a folder. A run that was killed goes on from the newest state in it, with the same bits.
        checkpoint_every: how many batches lie between two states.
        measure_memory: whether the report says how much memory the largest step of each method took; see `Meter`.

    Raises:
        DataError: no methods, a batch without labels, labels that do not fit the model, or a stream without a batch.
        CheckpointError: states of another run.
    """
    if not methods:
        raise DataError("no methods were given; pass at least one, for example {'source': Source(model)}")
    processes, device = ProcessGroup(accelerator), device or getattr(accelerator, "device", None)
    if processes.count > 1:
        stream = stream.shard(processes.rank, processes.count)
    tally = MetricAccumulator(list(methods))
    meter = Meter(methods, memory=measure_memory)
    parts: dict[str, Any] = {"stream": stream, "tally": tally} | {f"method {name}": m for name, m in methods.items()}
    kept = None if checkpoint is None else Checkpoints(Path(checkpoint), provenance or {})
    done = 0 if kept is None else kept.resume(processes, parts)
    total = length_hint(stream) or None
    hidden = not progress or not getattr(accelerator, "is_local_main_process", True)
    with tqdm(stream, initial=done, total=total, unit="batch", disable=True if hidden else None) as bar:
        for batch in bar:
            if batch["is_domain_start"] and stream.protocol == "single":
                for method in methods.values():
                    method.reset()
            seen = _answer(done, batch, meter, tally, processes, device, getattr(stream, "class_subset", None))
            errors = {name: tally.counts.of(batch["domain"], name).error for name in methods}
            bar.set_description(batch["domain"], refresh=False)
            bar.set_postfix(_shown(errors, seen.step), refresh=False)
            if on_step is not None and seen.step is not None:
                on_step(batch["domain"], seen.step)
            if on_batch is not None:
                on_batch(seen)
            if accelerator is not None:
                accelerator.log(tracked(errors, seen.step), step=done)
            done += 1
            if kept is not None and done % checkpoint_every == 0 and processes.is_main:
                kept.save(done, parts)
    if kept is not None and processes.is_main:
        kept.save(done, parts)
    facts = {"stream": stream.describe(), "versions": versions()} | dict(provenance or {})
    parameters = {name: sum(p.numel() for p in method.parameters()) for name, method in methods.items()}
    return tally.report(facts, parameters)


def _answer(
    number: int,
    batch: Mapping[str, Any],
    meter: Meter,
    tally: MetricAccumulator,
    processes: ProcessGroup,
    device: Any,
    classes: Tensor | None,
) -> BatchRecord:
    """Let every method answer and learn from one batch, and count its answers, over all processes."""
    labels = batch.get("labels")
    if labels is None:
        raise DataError(
            "this stream has no labels, so no error can be counted; call method.step(pixel_values) yourself"
        )
    x: Tensor = batch["pixel_values"] if device is None else batch["pixel_values"].to(device)
    sums, answer, refusal = [], x, None
    for name in meter.methods:
        answer, cost = meter.step(name, x)
        tally.charge(name, cost)
        try:
            sums.append(sums_over(answer, labels, classes))
        except DataError as error:
            refusal = error
    total = processes.shard(len(labels), refusal).total  # raises the refusal of any process on all of them
    histograms = [class_counts(found, answer.shape[1]) for found in (answers_of(answer, classes), labels)]
    everywhere = processes.sum(torch.cat([*sums, *histograms]).to(x.device)).cpu()
    counted = everywhere[: NUM_SUMS * len(sums)].view(len(sums), NUM_SUMS).tolist()
    answers, truth = everywhere[NUM_SUMS * len(sums) :].chunk(2)
    for (name, method), values in zip(meter.methods.items(), counted, strict=True):
        tally.counts.of(batch["domain"], name).add(values, total)
        tally.note(name, getattr(method, "last", None))
    wrong = {name: values[0] for name, values in zip(meter.methods, counted, strict=True)}
    last = getattr(list(meter.methods.values())[-1], "last", None)
    step = last if isinstance(last, StepRecord) else None
    return BatchRecord(number, batch["domain"], total, wrong, present(answers), present(truth), step)


def _shown(errors: Mapping[str, float], record: StepRecord | None) -> dict[str, str]:
    """The running figures of a domain behind the bar."""
    names = list(errors)
    shown = {name: f"{errors[name]:.1f}%" for name in dict.fromkeys((names[0], names[-1]))}
    if record is not None:
        shown |= {"H": f"{record.entropy:.2f}", "gate": "open" if record.adapted else "shut"}
    return shown
