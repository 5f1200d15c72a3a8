"""A full disk and a folder that cannot be written to: one line that names the file, and what was there is kept."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from spear_hf import Spear, SpearModel
from spear_hf.errors import OutputError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.evaluation.report import BatchRecord, DomainResult, Report
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.files import write_atomically
from tests.builders import learner

FULL = r"cannot be written \(No space left on device\); make room on the disk"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB; mounting one takes root, and a container may forbid it."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root on Linux")
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=False).returncode:
        pytest.skip("this container forbids mounting")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # a lock may still be open


def fill(disk: Path) -> None:
    """Leave no byte of the disk."""
    with (disk / "fill").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def tta(net: nn.Module) -> Spear:
    made = learner(net)
    made.step(torch.randn(4, 3, 32, 32))
    return made


def other_adapter(disk: Path, tta: Spear) -> Callable[[], object]:
    tta.model.save_pretrained(disk / "fog")
    tta.model.set_scale(0.5)
    return lambda: tta.model.save_pretrained(disk / "fog")


def stream(disk: Path, tta: Spear) -> Callable[[], object]:
    tta.stream.save(disk / "cam")
    tta.step(torch.randn(4, 3, 32, 32))
    return lambda: tta.stream.save(disk / "cam")


def checkpoint(disk: Path, tta: Spear) -> Callable[[], object]:
    kept = Checkpoints(disk / "states", {})
    kept.save(1, {"method": tta})
    return lambda: kept.save(2, {"method": tta})


def line(disk: Path, tta: Spear) -> Callable[[], object]:
    folder = RunFolder(disk / "run")
    record = BatchRecord(0, "fog/5", 8, {"source": 4})
    folder.append(record)
    text = "x" * 9000  # more than the last page of the file has room for
    return lambda: folder.append(BatchRecord(1, text, 8, {"source": 4}))


def report(disk: Path, tta: Spear) -> Callable[[], object]:
    made = Report([DomainResult("fog/5", 8, {"source": 50.0})], ["source"])
    made.to_json(disk / "report.json")
    return lambda: made.to_json(disk / "report.json")


@pytest.mark.parametrize("make", [other_adapter, stream, checkpoint, line, report])
def test_a_full_disk_is_one_line_and_keeps_what_was_there(disk: Path, tta: Spear, make: Callable) -> None:
    write = make(disk, tta)
    fill(disk)
    before = files(disk)
    with pytest.raises(OutputError, match=FULL) as error:
        write()
    assert "\n" not in str(error.value)
    assert str(disk) in str(error.value)
    after = files(disk)
    if make is line:  # a cut last line is left out when it is read
        assert len(RunFolder(disk / "run").read_steps()) == 1
    else:
        assert after == before


def test_an_adapter_on_a_full_disk_still_loads(disk: Path, tta: Spear) -> None:
    write = other_adapter(disk, tta)
    fill(disk)
    with pytest.raises(OutputError):
        write()
    again = SpearModel.from_pretrained(tta.unload(), disk / "fog")
    assert again.get_model_status().adapters[0].gamma_deviation > 0


def test_states_on_a_full_disk_are_gone_on_from(disk: Path, tta: Spear) -> None:
    write = checkpoint(disk, tta)
    fill(disk)
    with pytest.raises(OutputError):
        write()
    assert Checkpoints(disk / "states", {}).resume(ProcessGroup(), {"method": tta}) == 1


@pytest.mark.parametrize("name", ["a.txt/b.txt", "a.txt"])
def test_a_path_that_leads_through_a_file_or_is_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("a file") if "/" in name else (tmp_path / "a.txt" / "x").mkdir(parents=True)
    with pytest.raises(OutputError, match=rf"{name} cannot be written"):
        write_atomically(tmp_path / name, "text")
