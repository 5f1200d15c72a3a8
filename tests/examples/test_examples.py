"""The examples as a user runs them: real processes, the embedded model, no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}


def adapt(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "adapt.py"), "--cpu", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=OFFLINE)


@pytest.mark.slow
def test_the_default_model_answers_corrupted_images_better_when_steered(tmp_path: Path) -> None:
    done = adapt("--limit", "128", "--corruptions", "fog,contrast", "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [(row["domain"], row["n"]) for row in report["rows"]] == [("fog/5", 128), ("contrast/5", 128)]
    assert report["mean_error"]["SPeaR"] < report["mean_error"]["source"] - 10
    assert "its logits are identical" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_run_that_remembers_its_stream_says_so_and_saves_what_it_learned(tmp_path: Path) -> None:
    memory = ["--statistics_memory", "64", "--domain_jump", "4", "--alpha_trial", "256"]
    words = ["--limit", "128", "--batch_size", "16", "--corruptions", "brightness,contrast", "--protocol", "continual"]
    done = adapt(*words, *memory, "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "began a new domain" in said
    assert "without the source's statistics" in said
    assert "its logits are identical" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--boundaries", "0", "7"], "BoundaryNotFoundError: boundaries=(0, 7) names depth 7"),
        (["--model", "resnett"], "ModelNotFoundError: 'resnett' is no folder"),
        (["--model", "./nowhere"], "ModelNotFoundError: nowhere is no folder"),
        (["--dataset", "./nowhere"], "DataError: "),
        (["--corruptions", "fogg"], "DataError: "),
        (["--severity", "6"], "DataError: "),
        (["--limit", "20000"], "DataError: limit=20000"),
        (["--tau", "2"], "ConfigError: tau=2.0 is not allowed"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(tmp_path: Path, words: list[str], message: str) -> None:
    done = adapt("--output", str(tmp_path / "run"), *words)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith(message)
    assert not (tmp_path / "run").exists()
