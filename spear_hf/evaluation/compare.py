"""compare: several methods at several batch sizes on one stream, each measured alone under the same conditions.

    from functools import partial
    streams = partial(load_stream, "photos.parquet", processor=load_processor(base))
    comparison = compare(base, lambda n: streams(batch_size=n), method_specs("all"), folder="runs/compare")

A cell is a method at a batch size. It runs alone on its own copy of the base model, from the same seed, over the same
images in the same order. A finished cell is one JSON file, and is not run again; a killed one goes on from the last
checkpoint.
"""

import copy
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from spear_hf.backbones.fingerprint import fingerprint
from spear_hf.backbones.head import own_head
from spear_hf.config import differences
from spear_hf.errors import CheckpointError, ConfigError, DataError, SpearError
from spear_hf.evaluation.comparison import Comparison, packed, unpacked
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.method_spec import MethodSpec
from spear_hf.evaluation.report import Report, versions
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.files import write_atomically
from spear_hf.utils.strict_json import strict_json


class Observer(Protocol):
    """Called after each step of a method; at the end it reports what it saw.

    >>> from spear_hf.evaluation.compare import Observer
    >>> class Entropies:
    ...     def __init__(self, method):
    ...         self.seen = []
    ...     def __call__(self, domain, record):
    ...         self.seen.append(record.entropy)
    ...     def facts(self):
    ...         return {"entropies": self.seen}
    >>> observer: Observer = Entropies(None)
    """

    def __call__(self, domain: str, record: StepRecord) -> None: ...

    def facts(self) -> dict[str, Any]:
        """JSON-ready; saved in the report's provenance under "observed"."""
        ...


def compare(
    base: nn.Module,
    streams: Callable[[int], Any],
    methods: Mapping[str, MethodSpec],
    *,
    batch_sizes: Sequence[int] = (4, 16, 256),
    folder: str | Path | None = None,
    resources: Mapping[str, Any] | None = None,
    observe: Callable[[TTAMethod], Observer] | None = None,
    on_cell: Callable[[str, int, Report], None] | None = None,
    checkpoint_images: int = 10_000,
    accelerator: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
    provenance: Mapping[str, Any] | None = None,
) -> Comparison:
    """The results of every method at every batch size; `base` is copied for each and not changed.

    >>> import torch
    >>> from spear_hf.evaluation.compare import compare
    >>> from spear_hf.evaluation.method_spec import MethodSpec
    >>> from torch import nn
    >>> class Batches(list):
    ...     protocol, describe = "single", lambda self: {}
    >>> rows = {"pixel_values": torch.eye(3), "labels": torch.arange(3), "domain": "clean", "is_domain_start": True}
    >>> base = nn.Sequential(nn.Identity(), nn.Linear(3, 3))
    >>> specs = {"source": MethodSpec("source")}
    >>> found = compare(base, lambda size: Batches([rows]), specs, batch_sizes=[3], progress=False)
    >>> found.report("source", 3).images
    3

    Args:
        base: an image classifier, on the device where it is to run.
        streams: batch size -> a new stream; all must give the same images in the same order.
        methods: label -> the method and its hyper-parameters.
        batch_sizes: images in a batch, over all processes.
        folder: where finished cells are saved and looked up, and the checkpoints of the running one; None saves none.
        resources: what methods get besides hyper-parameters; see `MethodSpec.build`.
        observe: makes an Observer for each method; it is called only for methods that keep StepRecords. An observed
            cell has no checkpoints.
        on_cell: called with (label, batch size, report) of each cell, run or found, by the main process.
        checkpoint_images: images between two checkpoints of a cell, for streams that can go on from one.
        accelerator: for several processes; the methods get it too.
        device: where images are moved; by default the accelerator's device, or the base model's.
        seed: of torch's global generator, set before each cell.
        progress: whether each cell shows a bar.
        provenance: further facts for the reports; a finished cell is reused only if its facts are the same.

    Raises:
        ConfigError: no methods or no batch sizes.
        DataError: the streams differ in more than the batch size.
        CheckpointError: the folder holds cells of another comparison.
    """
    if not methods or not batch_sizes:
        raise ConfigError(f"{len(methods)} methods at batch sizes {list(batch_sizes)}: give at least one of each")
    processes = ProcessGroup(accelerator)
    resources = dict(resources or {}) | ({} if accelerator is None else {"accelerator": accelerator})
    device = device or getattr(accelerator, "device", None) or next(base.parameters()).device
    head = own_head(base).to_dict()
    shared = {"base": fingerprint(base).to_dict(), "seed": seed} | ({"head": head} if head else {})
    shared |= dict(provenance or {})
    stream = _common_facts([streams(batch_size) for batch_size in batch_sizes])
    saved = _SavedCells(folder, processes)
    cells: dict[tuple[str, int], Report | str] = {}
    for batch_size in batch_sizes:
        for label, chosen in methods.items():
            spec = chosen.at(batch_size)
            facts = spec.describe(resources) | {"batch_size": batch_size}
            identity = shared | {"stream": stream} | facts
            cell = saved.find(label, batch_size, identity)
            if cell is None:
                torch.manual_seed(seed)
                options = {"device": device, "progress": progress, "provenance": shared | facts}
                source = streams(batch_size)
                if observe is None and hasattr(source, "load_state_dict"):
                    options |= saved.checkpoints(label, batch_size, checkpoint_images)
                cell = _run(label, base, source, spec, resources, observe, options)
                saved.keep(label, batch_size, cell, identity)
            if on_cell is not None and isinstance(cell, Report) and processes.is_main:
                on_cell(label, batch_size, cell)
            cells[label, batch_size] = cell
    named = {label: spec.describe(resources) for label, spec in methods.items()}
    return Comparison(cells, shared | {"stream": stream, "contenders": named, "versions": versions()})


def _run(
    label: str,
    base: nn.Module,
    stream: Any,
    spec: MethodSpec,
    resources: Mapping[str, Any],
    observe: Callable[[TTAMethod], Observer] | None,
    options: Mapping[str, Any],
) -> Report | str:
    """The report of one method, or the reason why it does not fit this model."""
    try:
        method = spec.build(copy.deepcopy(base), resources)
    except SpearError as error:
        return f"{type(error).__name__}: {error}"
    observer = None if observe is None else observe(method)
    options = {"accelerator": resources.get("accelerator"), "measure_memory": True} | dict(options)
    report = evaluate({label: method}, stream, on_step=observer, **options)
    if callable(settings := getattr(method, "settings", None)):
        report.provenance["in_force"] = settings()  # the values that defaults took on this model
    if observer is not None:
        report.provenance["observed"] = observer.facts()
    return report


def _common_facts(streams: Sequence[Any]) -> dict[str, Any]:
    """The description that all streams share; DataError where they differ in more than the batch size."""
    found = [_facts(stream) for stream in streams]
    for facts in found:
        if differ := differences(facts, found[0]):
            raise DataError(
                f"the streams of two batch sizes differ ({differ}), so their errors do not compare; "
                "make them with the same arguments but for batch_size"
            )
    return found[0]


def _facts(stream: Any) -> dict[str, Any]:
    """A stream's description without its batch size and without the path of its model."""
    facts = {name: value for name, value in stream.describe().items() if name != "batch_size"}
    if isinstance(facts.get("processor"), dict):
        facts["processor"] = {name: value for name, value in facts["processor"].items() if name != "origin"}
    return json.loads(strict_json(facts))


class _SavedCells:
    """The finished cells in a folder, one JSON file each.

    Args:
        folder: made when the first cell is saved; None saves none.
        processes: the main one reads and writes; all of them find the same cells.
    """

    def __init__(self, folder: str | Path | None, processes: ProcessGroup) -> None:
        self.folder = None if folder is None else Path(folder)
        self.processes = processes

    def find(self, label: str, batch_size: int, identity: Mapping[str, Any]) -> Report | str | None:
        """The cell that was saved under these facts; None where there is none.

        Raises:
            CheckpointError: its file is of another comparison, or cannot be read; on every process.
        """
        if self.folder is None:
            return None
        path = self._path(self.folder, label, batch_size)
        found = self.processes.same(_read(path) if self.processes.is_main else None)
        if found is None:
            return None
        if differ := differences(found["identity"], json.loads(strict_json(identity))):
            raise CheckpointError(
                f"{path} is of another comparison ({differ}); name another folder, or remove that file"
            )
        return unpacked(found["cell"])

    def checkpoints(self, label: str, batch_size: int, images: int) -> dict[str, Any]:
        """Arguments of `evaluate` for a cell that goes on where it was killed."""
        if self.folder is None:
            return {}
        path = self._path(self.folder, label, batch_size).with_suffix("")
        return {"checkpoint": path, "checkpoint_every": max(1, images // batch_size)}

    def keep(self, label: str, batch_size: int, cell: Report | str, identity: Mapping[str, Any]) -> None:
        """Save a report. A refusal is not saved: to find it again costs nothing, and it may be gone by then."""
        if self.folder is not None and isinstance(cell, Report) and self.processes.is_main:
            path = self._path(self.folder, label, batch_size)
            entry = {"identity": identity, "cell": packed(label, batch_size, cell)}
            write_atomically(path, strict_json(entry, indent=1) + "\n")
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)

    @staticmethod
    def _path(folder: Path, label: str, batch_size: int) -> Path:
        name = re.sub(r"[^\w.=+-]+", "_", label)
        return folder / f"{name}-{batch_size}.json"


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"identity": {"file": f"not JSON, {error}"}}
