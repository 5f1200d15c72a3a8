import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, SpearModel
from spear_hf.baselines import Source
from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.report import BatchRecord
from spear_hf.evaluation.run_folder import RunFolder, by_boundary
from tests.builders import Killed, KilledStream, TinyStream, images_and_labels, steered

CONFIG = SpearConfig(tau=0.0, boundaries=(0, 2))


def run(net: nn.Module, folder: Path, stream: TinyStream, *, checkpoint: bool = False, every: int = 50) -> SpearModel:
    """One run into a folder; the model as it ended."""
    net = copy.deepcopy(net)
    methods = {"source": Source(copy.deepcopy(net)), "SPeaR": Spear(steered(net, CONFIG))}
    model = methods["SPeaR"].model
    assert isinstance(model, SpearModel)
    written = RunFolder(folder, model)
    where = {"checkpoint": written.checkpoint, "checkpoint_every": every, "keep": {"run folder": written}}
    states = where if checkpoint else {}
    written.finish(evaluate(methods, stream, progress=False, on_batch=written.append, **states))
    return model


class Whole(NamedTuple):
    folder: Path
    model: SpearModel


@pytest.fixture(scope="module")
def whole(drawn_net: tuple[nn.Module, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run from beginning to end, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("whole")
    return Whole(folder, run(drawn_net[0], folder, TinyStream()))


def test_a_line_for_each_batch_adds_up_to_the_report(whole: Whole) -> None:
    steps = RunFolder(whole.folder).read_steps()
    assert [(r.batch, r.domain, r.n) for r in steps][2:4] == [(2, "domain0", 1), (3, "domain1", 16)]
    for row in RunFolder(whole.folder).read_report().rows:
        of_domain = [r for r in steps if r.domain == row.domain]
        for method, error in row.error.items():
            assert error == pytest.approx(100 * sum(r.wrong[method] for r in of_domain) / row.n)


def test_a_line_holds_answers_labels_step_and_deviations(whole: Whole) -> None:
    first, *_, last = RunFolder(whole.folder).read_steps()
    labels = images_and_labels(0, 16)[1]
    assert first.labels == {c: int((labels == c).sum()) for c in labels.unique().tolist()}
    assert sum(first.answers.values()) == 16
    assert first.step is not None
    assert first.step.adapted
    assert last.deviations == by_boundary(whole.model.snapshot())
    assert set(last.deviations) == {"0", "2"}
    assert last.deviations["0"][0] > 0


def test_a_killed_run_goes_on_without_duplicates_and_with_all_adapters(
    net: nn.Module, whole: Whole, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(net, tmp_path, KilledStream(), checkpoint=True, every=3)
    assert len(RunFolder(tmp_path).read_steps()) == 4  # one beyond the state that the run goes on from
    steps = tmp_path / "steps.jsonl"
    steps.write_text(steps.read_text() + '{"batch": 4, "dom')
    run(net, tmp_path, TinyStream(), checkpoint=True, every=3)
    for name in ("steps.jsonl", *(f"adapters/domain{i}/adapter_model.safetensors" for i in (0, 1))):
        assert (tmp_path / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_finished_run_that_is_started_again_changes_nothing(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream((4,)), checkpoint=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "report.json"}
    run(net, tmp_path, TinyStream((4,)), checkpoint=True)
    assert before == {path: path.read_bytes() for path in before}


class Gradual(TinyStream):
    """Its first domain comes again at the end, as in a stream whose severity rises and falls."""

    def __init__(self, sizes: tuple[int, ...] = (4, 2), protocol: str = "continual") -> None:
        super().__init__(sizes, protocol)

    def __len__(self) -> int:
        return 3 * len(self.sizes)

    def batch(self, number: int) -> dict[str, Any]:
        return super().batch(number) | {"domain": f"domain{number // len(self.sizes) % 2}"}


def adapters(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("adapters/*/*.safetensors")}


def test_a_domain_that_comes_again_has_what_it_taught_last_however_the_run_ended(
    net: nn.Module, tmp_path: Path
) -> None:
    run(net, tmp_path / "whole", Gradual())
    run(net, tmp_path / "killed", Gradual(), checkpoint=True, every=4)
    shutil.rmtree(tmp_path / "killed" / "adapters")  # killed after the last state was saved, in the middle of a domain
    (tmp_path / "killed" / "report.json").unlink()
    for _ in range(2):  # finished, and shown again
        run(net, tmp_path / "killed", Gradual(), checkpoint=True, every=4)
        assert adapters(tmp_path / "killed") == adapters(tmp_path / "whole")
    assert list(adapters(tmp_path / "whole")) != []


def test_adapters_of_an_earlier_run_go_and_other_files_stay(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream((4,)))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "clean.json").touch()
    run(net, tmp_path, OneDomain((4,)))
    assert list(adapters(tmp_path)) == ["domain0"]
    assert (tmp_path / "notes.txt").exists()
    assert not (tmp_path / "clean.json").exists()
    RunFolder(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


class OneDomain(TinyStream):
    def __len__(self) -> int:
        return len(self.sizes)


def test_lines_that_are_missing_or_there_twice_are_not_gone_on_from(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream((4,)), checkpoint=True)
    steps = tmp_path / "steps.jsonl"
    lines = steps.read_text().splitlines(keepends=True)
    for broken in (lines[1:], [lines[0], *lines]):
        steps.write_text("".join(broken))
        with pytest.raises(CheckpointError, match=r"steps\.jsonl does not hold the 2 batches"):
            run(net, tmp_path, TinyStream((4,)), checkpoint=True)


def test_another_process_is_kept_out_until_the_run_has_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    RunFolder(tmp_path / "run").lock()  # of this process: shared
    code = f"from spear_hf.utils.folder_lock import FolderLock; FolderLock({str(tmp_path / 'run')!r})"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"is in use by process {os.getpid()}; wait until it ends, or name another folder" in refused.stderr
    folder.unlock()
    assert not (tmp_path / "run").exists()  # nothing was written
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_domains_never_share_a_folder() -> None:
    folder = RunFolder("run")
    folder.learned = {"a/b": {}, "a-b": {}, "..": {}, "...": {}, "a:b": {}, "fog/5": {}, "": {}}
    names = [folder.adapter(domain).name for domain in folder.learned]
    assert len(set(names)) == len(names)
    assert folder.adapter("fog/5").name == "fog-5"
    assert not any(name.startswith(".") or not name for name in names)


def test_another_run_in_the_same_folder_replaces_the_lines(net: nn.Module, whole: Whole, tmp_path: Path) -> None:
    copy_of = tmp_path / "run"
    shutil.copytree(whole.folder, copy_of)
    run(net, copy_of, TinyStream((4,)))
    assert [r.n for r in RunFolder(copy_of).read_steps()] == [4, 4]


def test_a_saved_adapter_answers_as_the_model_that_learned(net: nn.Module, whole: Whole) -> None:
    x = images_and_labels(9, 8)[0]
    loaded = SpearModel.from_pretrained(net, whole.folder / "adapters" / "domain1")
    assert torch.equal(loaded(x), whole.model(x))


def test_nothing_is_written_before_the_first_batch_or_by_other_processes(net: nn.Module, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", is_main=False)
    folder.append(BatchRecord(0, "fog/5", 4, {"source": 1}))
    RunFolder(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"batch": 0}\n')
    with pytest.raises(DataError, match=r"steps.jsonl, line 1, is no record \(KeyError.*remove that line"):
        RunFolder(tmp_path).read_steps()


def test_a_folder_without_a_report_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no report.json; a run folder is what `spear-hf adapt"):
        RunFolder(tmp_path).read_report()
    (tmp_path / "report.json").write_text(json.dumps({"rows": 3}))
    with pytest.raises(DataError, match="is no report"):
        RunFolder(tmp_path).read_report()


def test_a_run_that_is_shown_again_removes_what_a_kill_left(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path / "run", TinyStream(), checkpoint=True, every=1)
    left = tmp_path / "run" / ".report.json.0a1b2c3d.spear-tmp"
    left.write_text("half a rep")
    run(net, tmp_path / "run", TinyStream(), checkpoint=True, every=1)
    assert not left.exists()
