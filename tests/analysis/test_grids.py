import math
import subprocess
import sys
from pathlib import Path

import pytest

from spear_hf.analysis import AlphaRow
from spear_hf.analysis.grids import grid, lines, save_panels, shown, summary
from spear_hf.errors import ConfigError
from tests.conftest import ROOT


def test_a_grid_holds_means_in_the_order_of_the_rows() -> None:
    rows = [AlphaRow(domain, alpha, 16, 60.0, 40.0 - 20 * alpha) for domain in ("fog", "snow") for alpha in (0.5, 0.0)]
    rows.append(AlphaRow("snow", 0.0, 16, 60.0, 70.0))
    found = grid(rows, "alpha", "batch_size", "learned")
    assert (found.rows, found.columns) == ([0.5, 0.0], [16])
    assert found.row(0.0) == [(40.0 + 40.0 + 70.0) / 3]
    assert math.isnan(found.row("nothing")[0])
    means = summary(rows, "alpha", ("learned", "unlearned"), mean=True)
    assert means.row("mean") == [(30.0 + 50.0) / 2, 60.0]
    assert means.only(["learned"]).row(0.5) == [30.0]
    assert shown(means, "title", "alpha").row_count == 3


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'need matplotlib.*pip install "spear-hf\[plots\]"'):
        save_panels(tmp_path / "x.png", {}, lines, y="", x="")


@pytest.mark.slow
def test_every_command_leaves_rows_and_a_figure(tmp_path: Path) -> None:
    words = ["amd", "cka", "probe", "gate", "scarce", "alpha", "--corruptions", "fog", "--limit", "256", "--updates"]
    words += ["1", "--batch-sizes", "64", "--alphas", "0,0.5", "--output", str(tmp_path), "--device", "cpu"]
    command = [sys.executable, str(ROOT / "examples" / "analyze.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("amd", "cka", "probe", "gate", "scarce", "alpha"):
        assert (tmp_path / f"{name}.json").stat().st_size > 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"{name}" in done.stdout
