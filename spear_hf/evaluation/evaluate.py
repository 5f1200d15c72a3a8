"""evaluate(methods, stream) -> Report: every method predicts each batch before it learns from it."""

from collections.abc import Callable, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from spear_hf.errors import DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.checkpoint import Checkpoints, Stateful
from spear_hf.evaluation.cost import Meter
from spear_hf.evaluation.input_batch import InputBatch, input_batches
from spear_hf.evaluation.metrics import NUM_SUMS, answers_of, sums_over
from spear_hf.evaluation.predictions import Prediction, predictions_of
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


class RepeatableStream(Protocol):
    """What `evaluate` needs of a stream beyond its batches, to reset methods, to share work and to resume a run.

    `spear_hf.data.load_stream.load_stream` makes one. For several processes it also needs `shard(rank, count)`, and for
    checkpoints `state_dict` and `load_state_dict`. Any other iterable of batches will do for one process.

    >>> import torch
    >>> from spear_hf.evaluation.evaluate import RepeatableStream
    >>> class Batches(list):
    ...     protocol, describe = "single", lambda self: {}
    >>> x, y = torch.zeros(2, 3, 32, 32), torch.tensor([0, 1])
    >>> stream: RepeatableStream = Batches([{"pixel_values": x, "labels": y, "domain": "clean"}])
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
    on_predictions: Callable[[list[Prediction]], None] | None = None,
    class_names: Sequence[str] | None = None,
    domain_names: Mapping[str, str] | None = None,
    restrict_classes: bool = False,
    provenance: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    keep: Mapping[str, Stateful] | None = None,
    measure_memory: bool = False,
) -> Report:
    """The results of all methods on one stream. Each batch is predicted, counted, and only then learned from.

    Under the protocol "single" every method is reset before each domain; under others, and on a stream without a
    protocol, it keeps what it has learned. Without labels the report has no errors, but what changed in the answers.

    >>> import timm, torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.evaluation.evaluate import evaluate
    >>> loader = [{"pixel_values": torch.zeros(2, 3, 32, 32), "labels": torch.tensor([0, 1])}]
    >>> report = evaluate({"source": Source(timm.create_model("test_resnet"))}, loader, progress=False)
    >>> report.rows[0].domain, report.images
    ('images', 2)

    Args:
        methods: name -> method. Gains and changes are those of the last over the first.
        stream: a whole stream of `load_stream`, a DataLoader, or any iterable of dictionaries with pixel_values (and
            labels, names, domain, is_domain_start where it has them), pairs (images, labels), or tensors.
        accelerator: for several processes: each takes its slice of every batch, and all return the same report. Give
            the methods the same accelerator. Its trackers get one record for each batch.
        device: where pixel_values are moved; by default the accelerator's device, or where they are.
        progress: whether the local main process shows a bar, with the running error of the first and the last method,
            the entropy and the gate.
        on_step: called with (domain, StepRecord) after each step of the last method, if it keeps records.
        on_batch: called with the BatchRecord of each batch on every process, before the state is saved; a `RunFolder`
            writes these records.
        on_predictions: called with the Predictions of the last method for each batch, over all processes; a
            `PredictionFile` writes them. The main process decides whether there are any. The source in them is the
            first method.
        class_names: of the model, for the predictions.
        domain_names: name of a domain in the stream -> its name in the results.
        restrict_classes: whether only the classes that the stream has (`stream.class_subset`) can be answered; the
            report says so. By default all classes of the model can.
        provenance: further facts for the report; a checkpoint is used only if its facts are the same.
        checkpoint: a folder for states. A killed run continues from the newest one, with the same bits.
        checkpoint_every: batches between two states.
        keep: name -> what else a state holds, a `RunFolder` for example, which goes on with the run.
        measure_memory: whether to measure the memory that the largest step of each method takes; see `Meter`.

    Raises:
        DataError: no methods, labels that do not fit the model or that some batches lack, a stream without a batch, or
            one that cannot be shared or resumed as asked.
        CheckpointError: the folder holds states of another run.
    """
    if not methods:
        raise DataError("no methods were given; pass at least one, for example {'source': Source(model)}")
    processes, device = ProcessGroup(accelerator), device or getattr(accelerator, "device", None)
    _check_stream(stream, processes, checkpoint)
    if processes.count > 1:
        stream = stream.shard(processes.rank, processes.count)
    metrics = MetricAccumulator(list(methods))
    meter = Meter(methods, memory=measure_memory)
    classes = getattr(stream, "class_subset", None) if restrict_classes else None
    settings = {
        "mixed_precision": getattr(accelerator, "mixed_precision", "no"),
        "answers": "all classes of the model" if classes is None else f"the {len(classes)} classes of these images",
    }
    facts = dict(provenance or {}) | settings
    parts: dict[str, Any] = {"stream": stream, "tally": metrics} | {f"method {name}": m for name, m in methods.items()}
    parts |= dict(keep or {})
    kept = None if checkpoint is None else Checkpoints(Path(checkpoint), facts)
    done = 0 if kept is None else kept.resume(processes, parts)
    total = length_hint(stream) or None
    hidden = not progress or not getattr(accelerator, "is_local_main_process", True)
    is_single = getattr(stream, "protocol", None) == "single"
    gathers = processes.same(on_predictions is not None)  # by all processes, also those that write nothing
    with tqdm(
        input_batches(stream, domain_names), initial=done, total=total, unit="batch", disable=hidden or None
    ) as bar:
        for batch in bar:
            if batch.is_domain_start and is_single:
                for method in methods.values():
                    method.reset()
            answers, seen = _answer(done, batch, meter, metrics, processes, device, classes)
            if gathers:
                first, last = answers[0], answers[-1]
                made = predictions_of(batch, done, last, first, seen.step, class_names, classes)
                everywhere = processes.gathered(made)
                if on_predictions is not None:
                    on_predictions(everywhere)
            shown = {name: metrics.error(seen.domain, name) for name in methods} if seen.wrong else {}
            bar.set_description(seen.domain, refresh=False)
            bar.set_postfix(_shown(shown, seen.step), refresh=False)
            if on_step is not None and seen.step is not None:
                on_step(seen.domain, seen.step)
            if on_batch is not None:
                on_batch(seen)
            if accelerator is not None:
                accelerator.log(_tracked(shown, seen.step), step=done)
            done += 1
            if kept is not None and done % checkpoint_every == 0:
                _share_skipped(stream, processes)
                if processes.is_main:
                    kept.save(done, parts)
    _share_skipped(stream, processes)
    if kept is not None and processes.is_main:
        kept.save(done, parts)
    described = stream.describe() if hasattr(stream, "describe") else {"kind": type(stream).__name__}
    machine = {"device": str(device or "where the images were"), "versions": versions()}
    parameters = {name: sum(p.numel() for p in method.parameters()) for name, method in methods.items()}
    told = {"notes": list(getattr(stream, "notes", ())), "left_out": list(getattr(stream, "skipped_names", ()))}
    return metrics.report({"stream": described} | told | machine | facts, parameters)


def _check_stream(stream: Any, processes: ProcessGroup, checkpoint: Any) -> None:
    """Refuse what cannot be done with a plain iterable."""
    kind = type(stream).__name__
    if processes.count > 1 and not hasattr(stream, "shard"):
        raise DataError(
            f"a {kind} cannot be shared by {processes.count} processes; load_stream makes a stream that can, or start "
            "one process"
        )
    if checkpoint is not None and not hasattr(stream, "load_state_dict"):
        raise DataError(
            f"a {kind} cannot be resumed from a checkpoint; load_stream makes one that can, or pass checkpoint=None"
        )


def _share_skipped(stream: Any, processes: ProcessGroup) -> None:
    """Tell every process which images the others left out; the main one saves and reports them."""
    if processes.count > 1 and hasattr(stream, "skipped"):
        stream.skipped.update(processes.gathered(sorted(stream.skipped)))


def _answer(
    number: int,
    batch: InputBatch,
    meter: Meter,
    metrics: MetricAccumulator,
    processes: ProcessGroup,
    device: Any,
    classes: Tensor | None,
) -> tuple[list[Tensor], BatchRecord]:
    """Let every method predict and learn from one batch, and add its sums over all processes to `metrics`."""
    labels, domain = batch.labels, batch.domain
    x = batch.inputs(device)
    sums, answers, refusal = [], [], None
    for name in meter.methods:
        logits, seconds, memory = meter.step(name, x)
        answers.append(logits)
        metrics.add_cost(name, seconds, memory, meter.memory_kind)
        try:
            sums.append(sums_over(logits, labels, classes, answers[0]))
        except DataError as error:
            refusal = error  # raised below, on all processes: one that raised here would leave the others waiting
    total = processes.shard(len(batch.pixel_values), refusal).total
    num_classes = answers[-1].shape[1]
    truth = torch.zeros(0, dtype=torch.int64) if labels is None else labels.cpu()
    histograms = [c.cpu().bincount(minlength=num_classes) for c in (answers_of(answers[-1], classes), truth)]
    # one collective for all sums of all methods
    everywhere = processes.sum(torch.cat([*sums, *histograms]).to(device or batch.pixel_values.device)).cpu()
    counted = everywhere[: NUM_SUMS * len(sums)].view(len(sums), NUM_SUMS).tolist()
    answered, true = everywhere[NUM_SUMS * len(sums) :].chunk(2)
    for (name, method), values in zip(meter.methods.items(), counted, strict=True):
        metrics.add(domain, name, values, total, labelled=labels is not None)
        metrics.add_step(name, getattr(method, "last", None))
    wrong = {} if labels is None else {n: values[0] for n, values in zip(meter.methods, counted, strict=True)}
    last = getattr(list(meter.methods.values())[-1], "last", None)
    step = last if isinstance(last, StepRecord) else None
    return answers, BatchRecord(number, domain, total, wrong, _present(answered), _present(true), step)


def _present(counts: Tensor) -> dict[int, int]:
    """class -> count, for the classes that occur."""
    return {int(c): int(counts[c]) for c in counts.nonzero().flatten()}


def _shown(errors: Mapping[str, float], record: StepRecord | None) -> dict[str, str]:
    """The numbers behind the bar."""
    names = list(errors)
    shown = {name: f"{errors[name]:.1f}%" for name in dict.fromkeys((*names[:1], *names[-1:]))}
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
