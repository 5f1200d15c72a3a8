import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from spear_hf import Spear, SpearConfig, SpearModel, get_spear_model
from spear_hf.baselines import Source
from spear_hf.errors import DataError
from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.run import read_run, read_steps
from spear_hf.evaluation.run_folder import RunFolder, by_boundary
from tests.builders import Killed, KilledStream, TinyStream, images_and_labels

CONFIG = SpearConfig(tau=0.0, boundaries=(0, 2))


def run(net: nn.Module, folder: Path, stream: TinyStream, *, checkpoint: bool = False, every: int = 50) -> SpearModel:
    """One run into a folder; the model as it ended."""
    net = copy.deepcopy(net)
    methods = {"source": Source(copy.deepcopy(net)), "SPeaR": Spear(get_spear_model(net, CONFIG))}
    model = methods["SPeaR"].model
    assert isinstance(model, SpearModel)
    written = RunFolder(folder, model, every=every)
    states = {"checkpoint": written.checkpoint, "checkpoint_every": every} if checkpoint else {}
    written.finish(evaluate(methods, stream, progress=False, on_batch=written.append, **states))
    return model


def test_a_line_for_each_batch_adds_up_to_the_report(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream())
    found = read_run(tmp_path)
    assert [(r.batch, r.domain, r.n) for r in found.steps][2:4] == [(2, "domain0", 1), (3, "domain1", 16)]
    for row in found.report.rows:
        of_domain = [r for r in found.steps if r.domain == row.domain]
        for method, error in row.error.items():
            assert error == pytest.approx(100 * sum(r.wrong[method] for r in of_domain) / row.n)


def test_a_line_holds_answers_labels_step_and_deviations(net: nn.Module, tmp_path: Path) -> None:
    model = run(net, tmp_path, TinyStream())
    first, last = read_run(tmp_path).steps[0], read_run(tmp_path).steps[-1]
    labels = images_and_labels(0, 16)[1]
    assert first.labels == {c: int((labels == c).sum()) for c in labels.unique().tolist()}
    assert sum(first.answers.values()) == 16
    assert first.step is not None
    assert first.step.adapted
    assert last.deviations == by_boundary(model.snapshot())
    assert set(last.deviations) == {"0", "2"}
    assert last.deviations["0"][0] > 0


def test_a_killed_run_goes_on_without_duplicates(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path / "whole", TinyStream())
    with pytest.raises(Killed):
        run(net, tmp_path / "killed", KilledStream(), checkpoint=True, every=3)
    steps = tmp_path / "killed" / "steps.jsonl"
    assert len(read_steps(steps)) == 4  # one beyond the state that the run goes on from
    steps.write_text(steps.read_text() + '{"batch": 4, "dom')
    run(net, tmp_path / "killed", TinyStream(), checkpoint=True, every=3)
    assert steps.read_bytes() == (tmp_path / "whole" / "steps.jsonl").read_bytes()


def test_a_resumed_run_saves_the_adapters_of_domains_that_were_over(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path / "whole", TinyStream())
    with pytest.raises(Killed):
        run(net, tmp_path / "killed", KilledStream(), checkpoint=True, every=3)
    run(net, tmp_path / "killed", TinyStream(), checkpoint=True, every=3)
    for domain in ("domain0", "domain1"):
        whole, killed = (tmp_path / n / "adapters" / domain / "adapter_model.safetensors" for n in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes()


def test_a_finished_run_that_is_started_again_changes_nothing(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream(), checkpoint=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "report.json"}
    run(net, tmp_path, TinyStream(), checkpoint=True)
    assert before == {path: path.read_bytes() for path in before}


def test_another_run_in_the_same_folder_replaces_the_lines(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path, TinyStream())
    run(net, tmp_path, TinyStream((4,)))
    assert [r.n for r in read_run(tmp_path).steps] == [4, 4]


def test_a_saved_adapter_answers_as_the_model_that_learned(net: nn.Module, tmp_path: Path) -> None:
    model = run(net, tmp_path, TinyStream())
    x = images_and_labels(9, 8)[0]
    loaded = SpearModel.from_pretrained(copy.deepcopy(net), tmp_path / "adapters" / "domain1")
    assert torch.equal(loaded(x), model(x))


def test_nothing_is_written_before_the_first_batch_or_by_other_processes(net: nn.Module, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", is_main=False)
    folder.append(BatchRecord(0, "fog/5", 4, {"source": 1}))
    RunFolder(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"batch": 0}\n')
    with pytest.raises(DataError, match=r"steps.jsonl, line 1, is no record \(KeyError.*remove that line"):
        read_steps(tmp_path / "steps.jsonl")


def test_a_folder_without_a_report_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no report.json; a run folder is what `spear-hf adapt"):
        read_run(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({"rows": 3}))
    with pytest.raises(DataError, match="is no report"):
        read_run(tmp_path)
