"""compare: several methods at several batch sizes on one stream, fair by construction and resumable.

    from functools import partial
    streams = partial(load_stream, "photos.parquet", processor=load_processor(base))
    comparison = compare(base, lambda n: streams(batch_size=n), method_specs("all"), folder="runs/compare")

Every cell (a method at a batch size) runs alone on a copy of the same base, from the same seed, over the same images in
the same order; a finished cell is one JSON file and is not run again.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from spear_hf.backbones.fingerprint import fingerprint
from spear_hf.config import differences
from spear_hf.errors import ConfigError, DataError, SpearError
from spear_hf.evaluation.comparison import Cell, Comparison
from spear_hf.evaluation.comparison_cache import ComparisonCache
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.method_spec import MethodSpec
from spear_hf.evaluation.report import versions
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup


class Observer(Protocol):
    """Looks at a method after each of its steps, and says at the end what it saw."""

    def __call__(self, domain: str, record: StepRecord) -> None: ...

    def facts(self) -> dict[str, Any]:
        """JSON-ready; stands in the report's provenance under "observed"."""
        ...


def compare(
    base: nn.Module,
    streams: Callable[[int], Any],
    contenders: Mapping[str, MethodSpec],
    *,
    batch_sizes: Sequence[int] = (4, 16, 256),
    folder: str | Path | None = None,
    resources: Mapping[str, Any] | None = None,
    observe: Callable[[TTAMethod], Observer] | None = None,
    accelerator: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
    provenance: Mapping[str, Any] | None = None,
) -> Comparison:
    """Run every contender at every batch size; `base` is copied for each and stays as it is.

    Args:
        base: an image classifier, where it is to run.
        streams: batch size -> a stream, a new one at each call; all must show the same images in the same order.
        contenders: label -> Contender, with the hyper-parameters that it is to have.
        batch_sizes: images in a batch, over all processes.
        folder: where finished cells are kept and looked for.
        resources: what methods get beyond hyper-parameters; see `MethodSpec.build`.
        observe: makes an Observer of each method; those without StepRecords show it nothing.
        accelerator: for several processes; also handed to the methods.
        device: where images go; the accelerator's, or else the base's.
        seed: of torch's global generator, before each cell.
        progress: a bar for each cell.
        provenance: further facts for the reports; cells of other facts are not taken for finished.

    Raises:
        ConfigError: no contenders or batch sizes.
        DataError: streams that differ in more than the batch size.
        CheckpointError: the folder holds cells of another comparison.
    """
    if not contenders or not batch_sizes:
        raise ConfigError(f"{len(contenders)} methods at batch sizes {list(batch_sizes)}: give at least one of each")
    processes = ProcessGroup(accelerator)
    resources = dict(resources or {}) | ({} if accelerator is None else {"accelerator": accelerator})
    device = device or getattr(accelerator, "device", None) or next(base.parameters()).device
    shared = {"base": fingerprint(base).to_dict(), "seed": seed} | dict(provenance or {})
    stream = _common_facts([streams(batch_size) for batch_size in batch_sizes])
    kept = ComparisonCache(folder, processes)
    cells = []
    for batch_size in batch_sizes:
        for label, contender in contenders.items():
            facts = contender.describe(resources) | {"batch_size": batch_size}
            identity = shared | {"stream": stream} | facts
            cell = kept.find(label, batch_size, identity)
            if cell is None:
                torch.manual_seed(seed)
                options = {"device": device, "progress": progress, "provenance": shared | facts}
                cell = Cell(label, batch_size, None)
                cell = _run(cell, base, streams(batch_size), contender, resources, observe, options)
                kept.keep(cell, identity)
            cells.append(cell)
    named = {label: contender.describe(resources) for label, contender in contenders.items()}
    return Comparison(cells, shared | {"stream": stream, "contenders": named, "versions": versions()})


def _run(
    cell: Cell,
    base: nn.Module,
    stream: Any,
    contender: MethodSpec,
    resources: Mapping[str, Any],
    observe: Callable[[TTAMethod], Observer] | None,
    options: Mapping[str, Any],
) -> Cell:
    """The cell with its report, or with the reason why the method cannot be put on this model."""
    try:
        method = contender.build(copy.deepcopy(base), resources)
    except SpearError as error:
        return Cell(cell.label, cell.batch_size, None, f"{type(error).__name__}: {error}")
    observer = None if observe is None else observe(method)
    options = {"accelerator": resources.get("accelerator"), "measure_memory": True} | dict(options)
    report = evaluate({cell.label: method}, stream, on_step=observer, **options)
    if callable(settings := getattr(method, "settings", None)):
        report.provenance["in_force"] = settings()  # what defaults became on this model
    if observer is not None:
        report.provenance["observed"] = observer.facts()
    return Cell(cell.label, cell.batch_size, report)


def _common_facts(streams: Sequence[Any]) -> dict[str, Any]:
    """What all streams say of themselves; DataError where they differ in more than the batch size."""
    found = [_facts(stream) for stream in streams]
    for facts in found:
        if differ := differences(facts, found[0]):
            raise DataError(
                f"the streams of two batch sizes differ ({differ}), so their errors do not compare; "
                "make them with the same arguments but for batch_size"
            )
    return found[0]


def _facts(stream: Any) -> dict[str, Any]:
    """What a stream says of itself, but for its batch size and for where its model lies."""
    facts = {name: value for name, value in stream.describe().items() if name != "batch_size"}
    if isinstance(facts.get("processor"), dict):
        facts["processor"] = {name: value for name, value in facts["processor"].items() if name != "origin"}
    return json.loads(json.dumps(facts))
