"""spear-hf adapt, eval and compare on the embedded model and images; two tests run the real command."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spear_hf.evaluation.run_folder import RunFolder
from tests.builders import printed, spear_hf
from tests.conftest import EMBEDDED, OFFLINE, ROOT

Words = Callable[..., list[str]]
Run = Callable[..., Any]
SMALL = ("--preset", "cifar", "--limit", "32", "--batch-size", "16", "--cpu")
ALL = EMBEDDED / "test.parquet"


@pytest.fixture
def words_of(photos: Path) -> Words:
    """The words of a command on the embedded model and 64 images."""

    def words_of(name: str, output: Path, *words: str, images: Path = photos) -> list[str]:
        page = () if name == "compare" else ("--no-page",)
        return [name, str(EMBEDDED / "resnet"), str(images), *SMALL, *page, "--output", str(output), *words]

    return words_of


@pytest.fixture
def run(words_of: Words) -> Run:
    """Runs a command in this process."""
    return lambda *words, **options: spear_hf(*words_of(*words, **options))


def process(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "spear_hf.cli", *words]


@pytest.mark.slow
def test_adapt_leaves_a_run_and_its_adapters_answer_frozen(tmp_path: Path, words_of: Words) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ("--corruptions", "fog,contrast", "--tau", "0.1", "--clean-images", "16", "--guard")
    found = printed(*words_of("adapt", tmp_path / "run", *words, "--log-with", "tensorboard"))
    kept = RunFolder(tmp_path / "run")
    report, clean = kept.read_report(), kept.read_clean()
    assert found["mean_error"] == report.to_dict()["mean_error"]
    assert found["mean_error"]["SPeaR"] < found["mean_error"]["source"]
    assert (len(kept.read_steps()), report.provenance["config"]["tau"]) == (4, 0.1)
    assert report.provenance["class_names"][1] == "Trouser"
    assert clean is not None
    assert [(row.domain, row.n) for row in clean.rows] == [("fog/5", 16), ("contrast/5", 16)]
    frozen = printed(*words_of("eval", tmp_path / "eval", "--corruptions", "fog", "--adapter", found["adapters"][0]))
    assert frozen["methods"] == ["source", "fog-5"]
    assert frozen["rows"][0]["error"]["source"] == found["rows"][0]["error"]["source"]
    events = EventAccumulator(str(tmp_path / "run" / "spear_hf")).Reload()
    assert [event.step for event in events.Scalars("error/SPeaR")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_ends_as_one_that_was_not(tmp_path: Path, run: Run, words_of: Words) -> None:
    words = ("--corruptions", "fog,contrast", "--limit", "192", "--batch-size", "8", "--save-every", "4")
    assert run("adapt", tmp_path / "whole", *words, images=ALL).exit_code == 0
    cut = subprocess.Popen(
        process(words_of("adapt", tmp_path / "cut", *words, images=ALL)),
        env=OFFLINE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while not (tmp_path / "cut" / "checkpoint" / "step-00000012").is_dir():
        assert cut.poll() is None
        time.sleep(0.02)
    cut.send_signal(signal.SIGINT)
    _, errors = cut.communicate(timeout=120)
    assert cut.returncode == 130, errors
    assert "the same command continues there, --fresh starts again" in errors
    assert 12 <= len(RunFolder(tmp_path / "cut").read_steps()) < 48
    assert not (tmp_path / "cut" / "report.json").exists()
    assert run("adapt", tmp_path / "cut", *words, images=ALL).exit_code == 0
    for name in ("steps.jsonl", "adapters/fog-5/adapter_model.safetensors", "adapters/contrast-5/README.md"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert RunFolder(tmp_path / "cut").read_report().rows == RunFolder(tmp_path / "whole").read_report().rows


@pytest.mark.slow
def test_two_processes_leave_what_one_leaves(tmp_path: Path, run: Run, words_of: Words) -> None:
    words = ("--corruptions", "fog,contrast", "--protocol", "continual", "--clean-images", "64")
    assert run("adapt", tmp_path / "one", *words).exit_code == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        launch + process(words_of("adapt", tmp_path / "two", *words))[1:], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    assert [(r.batch, r.n, r.wrong, r.answers, r.labels) for r in one.read_steps()] == [
        (r.batch, r.n, r.wrong, r.answers, r.labels) for r in two.read_steps()
    ]
    answers = [(tmp_path / name / "predictions.csv").read_text().splitlines() for name in ("one", "two")]
    assert [row.split(",")[:2] for row in answers[0]] == [row.split(",")[:2] for row in answers[1]]
    clean_of_one, clean_of_two = one.read_clean(), two.read_clean()
    assert clean_of_one is not None
    assert clean_of_two is not None
    assert [row.error for row in clean_of_one.rows] == [row.error for row in clean_of_two.rows]
    assert len(list((tmp_path / "two" / "adapters").iterdir())) == 2


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused_unless_begun_anew(tmp_path: Path, run: Run) -> None:
    words = ("--corruptions", "fog", "--limit", "8", "--batch-size", "8")
    assert run("eval", tmp_path, *words).exit_code == 0
    adapter = ("--adapter", str(ROOT / "hub_cards" / "resnet-fog"))
    done = run("eval", tmp_path, *words, *adapter)
    assert done.exit_code == 2
    assert "is of another run (['method resnet-fog'] are in only one of them)" in done.stderr
    assert done.stderr.strip().endswith("or start again with --fresh")
    assert run("eval", tmp_path, *words, *adapter, "--fresh").exit_code == 0
    assert RunFolder(tmp_path).read_report().methods == ["source", "resnet-fog"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tau", "2"), "ConfigError: --tau 2.0 is not allowed"),
        (("--boundaries", "0,7"), "BoundaryNotFoundError: --boundaries (0, 7) names depth 7"),
        (("--corruptions", "fogg"), "DataError: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(
    tmp_path: Path, run: Run, words: tuple[str, ...], message: str
) -> None:
    done = run("adapt", tmp_path / "run", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip().splitlines()[-1].startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_compare_keeps_finished_methods_and_corrupted_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words_of: Words
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.json").write_text('{"gentle": {"method": "spear", "learning_rate": 0.01}}')
    words = [
        "--methods",
        "source,gentle",
        "--settings",
        "settings.json",
        "--batch-sizes",
        "2,4",
        "--limit",
        "4",
        "--shuffle",
    ]
    words = words_of("compare", tmp_path / "run", "--corruptions", "fog", *words, "--cache", "kept")
    found = printed(*words)
    assert [(cell["label"], cell["batch_size"]) for cell in found["cells"]] == [
        ("source", 2),
        ("gentle", 2),
        ("source", 4),
        ("gentle", 4),
    ]
    assert json.loads((tmp_path / "run" / "comparison.json").read_text())["cells"] == found["cells"]
    assert len(list(Path("kept").glob("*.npy"))) == 1
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "cells").rglob("*")}
    assert spear_hf(*words).exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "tentt"), "ConfigError: method='tentt' is not known"),
        (("--settings", "nowhere.json"), "ConfigError: nowhere.json holds no hyper-parameters by method"),
        (("--batch-sizes", "4,x"), "'4,x' is not allowed; give whole numbers with commas"),
    ],
)
def test_compare_refuses_what_it_does_not_know(tmp_path: Path, run: Run, words: tuple[str, ...], message: str) -> None:
    done = run("compare", tmp_path / "run", *words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
