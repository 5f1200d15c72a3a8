"""Files from outside with bytes changed at random: the result is valid or one line, and nothing is changed."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spear_hf import Spear
from spear_hf.adapters.card_metrics import CardMetrics, CardRow, metrics_bytes, read_metrics
from spear_hf.errors import SpearError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.evaluation.report import BatchRecord, DomainResult, Report
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.distributed import ProcessGroup
from tests.adapters.test_fuzz import EDITS, FEW_AND_MANY, fuzz, mutated, unless_refused
from tests.builders import learner


def fuzzed(examples: int, folder: Path, name: str, read: Callable[[Path], Any]) -> None:
    """Read a copy of the folder in which one file was changed, many times."""

    @fuzz(examples, edits=EDITS)
    def check(edits: list[tuple[str, float, bytes]]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            own = Path(shutil.copytree(folder, Path(temporary) / "copy"))
            (own / name).write_bytes(mutated((own / name).read_bytes(), edits))
            message = ""
            try:
                read(own)
            except SpearError as error:
                message = str(error)
            assert len(message.splitlines()) <= 1


@pytest.fixture
def tta(net: nn.Module) -> Spear:
    made = learner(net)
    made.step(torch.randn(4, 3, 32, 32))
    return made


@FEW_AND_MANY
def test_a_saved_stream(tta: Spear, tmp_path: Path, examples: int) -> None:
    tta.step(torch.randn(2, 3, 32, 32), streams="cam")
    tta.streams["cam"].save(tmp_path / "streams" / "cam")
    fresh = tta._new_state()

    def read(folder: Path) -> None:
        before, steps = fresh.flat.clone(), fresh.num_steps
        if unless_refused(lambda: fresh.load(folder / "cam")) is None:
            assert torch.equal(fresh.flat, before)
            assert fresh.num_steps == steps

    fuzzed(examples, tmp_path / "streams", "cam.safetensors", read)


@FEW_AND_MANY
@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_checkpoint(tta: Spear, tmp_path: Path, name: str, examples: int) -> None:
    Checkpoints(tmp_path / "states", {}).save(1, {"method": tta})
    parts = {"method": tta}
    fuzzed(
        examples,
        tmp_path / "states",
        f"step-00000001/{name}",
        lambda folder: Checkpoints(folder, {}).resume(ProcessGroup(), parts),
    )
    assert all(bool(torch.isfinite(p).all()) for p in tta.parameters())


@FEW_AND_MANY
@pytest.mark.parametrize("name", ["steps.jsonl", "report.json"])
def test_a_run_folder(tmp_path: Path, name: str, examples: int) -> None:
    folder = RunFolder(tmp_path / "run")
    for number in range(3):
        folder.append(BatchRecord(number, "fog/5", 8, {"source": 4}, {1: 8}, {1: 8}))
    folder.finish(Report([DomainResult("fog/5", 8, {"source": 50.0})], ["source"]))
    readers = {"steps.jsonl": lambda f: RunFolder(f).read_steps(), "report.json": lambda f: RunFolder(f).read_report()}
    fuzzed(examples, tmp_path / "run", name, readers[name])


@FEW_AND_MANY
def test_metrics(tmp_path: Path, examples: int) -> None:
    results = CardMetrics("photos", online=(CardRow("fog/5", 8, 40.0, 30.0),))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.json").write_bytes(metrics_bytes(results, b""))
    fuzzed(examples, tmp_path / "a", "metrics.json", lambda folder: read_metrics(folder, b""))


def test_a_report_never_holds_nan(tmp_path: Path) -> None:
    """JSON has no NaN, and a reader in another language stops at one."""
    made = Report([DomainResult("fog/5", 8, {"source": float("nan")}, {"source": float("inf")})], ["source"])

    def strict(name: str) -> float:
        raise ValueError(name)

    json.loads(made.to_json(tmp_path / "report.json").read_text(), parse_constant=strict)
