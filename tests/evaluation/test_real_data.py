"""benchmarks/real_data.py as it is called, on a few real images."""

import subprocess
import sys
from pathlib import Path

import pytest

from spear_hf.evaluation.comparison import Comparison
from tests.conftest import OFFLINE, ROOT

SETTINGS = ROOT / "benchmarks" / "settings" / "cifar.json"


@pytest.mark.slow
@pytest.mark.parametrize(("which", "part", "count"), [("cifar", "held_out", 2000), ("cifar26", "reported", 8000)])
def test_real_networks_are_compared_on_real_images(
    tmp_path: Path, shared: Path, which: str, part: str, count: int
) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "real_data.py"), which, "--data", str(shared), "--part", part]
    methods = ["source", "eata", "spear", "spear_paper", "spear_views"]
    what = ["--methods", ",".join(methods), "--published", "--settings", str(SETTINGS), "--corruptions", "fog,contrast"]
    sizes = ["--limit", "32", "--batch-sizes", "16", "--device", "cpu"]
    places = ["--output", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    done = subprocess.run([*script, *what, *sizes, *places], capture_output=True, text=True, check=False, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    found = Comparison.from_json(tmp_path / "out" / "comparison.json")
    assert found.labels == methods
    assert found.provenance["contenders"]["spear_views"]["settings"]["tta_views"] == 4
    assert found.provenance["stream"]["source"]["count"] == count
    assert found.error("spear", 16) < found.error("source", 16)
    assert found.provenance["contenders"]["eata"]["resources"]["source_images"]["shape"] == [2000, 3, 32, 32]
