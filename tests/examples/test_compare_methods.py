"""examples/compare_methods.py as a user runs it: the embedded model and images, no network."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spear_hf.baselines import METHODS
from tests.conftest import ROOT
from tests.examples.test_examples import OFFLINE

pytestmark = pytest.mark.slow


def compare_methods(output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "examples" / "compare_methods.py")
    fixed = ["--cpu", "--output", str(output), "--cache", str(output / "cache"), "--source_images", "16"]
    command = [sys.executable, script, *fixed, "--corruptions", "fog,contrast", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=OFFLINE)


def test_every_method_is_compared_and_a_second_run_takes_up_what_is_there(tmp_path: Path) -> None:
    first = compare_methods(tmp_path, "--limit", "16", "--published", "cifar10")
    assert first.returncode == 0, first.stderr
    cells = json.loads((tmp_path / "comparison.json").read_text())["cells"]
    assert [cell["label"] for cell in cells] == [*METHODS]
    assert all(row["n"] == 16 for cell in cells for row in cell["report"]["rows"])
    assert (tmp_path / "figure.png").stat().st_size > 1000
    second = compare_methods(tmp_path, "--limit", "16", "--published", "cifar10")
    assert second.stdout == first.stdout  # seconds too: nothing ran


def test_bad_words_are_one_clear_line(tmp_path: Path) -> None:
    done = compare_methods(tmp_path, "--methods", "tents")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("ConfigError: method='tents' is not known")
