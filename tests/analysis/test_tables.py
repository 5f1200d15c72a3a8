import math
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from spear_hf import SpearConfig
from spear_hf.analysis import ImageSet, mixing_errors
from spear_hf.analysis.tables import grid, shown, summary
from spear_hf.errors import ConfigError
from tests.conftest import ROOT


def test_a_grid_holds_means_in_the_order_of_the_rows(net: nn.Module, data: ImageSet) -> None:
    rows = list(mixing_errors(net, [data, data], SpearConfig(), alphas=(0.5, 0.0), batch_sizes=(16,), updates=0))
    found = grid(rows, "alpha", "batch_size", "learned")
    assert (found.rows, found.columns) == ([0.5, 0.0], [16])
    assert found.row(0.0) == [rows[1].learned]
    assert math.isnan(found.row("nothing")[0])
    means = summary(rows, "alpha", ("learned", "unlearned"), mean=True)
    assert means.cells["mean", "learned"] == (rows[0].learned + rows[1].learned) / 2
    assert means.only(["learned"]).row(0.5) == [rows[0].learned]
    assert shown(means, "title", "alpha").row_count == 3


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from spear_hf.analysis.figures import lines, save_panels

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'needs matplotlib.*pip install "spear-hf\[analysis\]"'):
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
