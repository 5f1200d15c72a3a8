"""Processes that do not learn the same thing are refused at the first step, each of them, with what differs."""

from pathlib import Path

import pytest

from tests.processes import run_in_two_processes

SCRIPT = """
import sys
import torch
from spear_hf import SpearConfig
from spear_hf.errors import LaunchError
from spear_hf.utils.launch import start_accelerator
from tests.builders import TwoStages, learner

accelerator, lines = start_accelerator(cpu=True), []
rank = accelerator.process_index
for what in ("tau", "weights", "adapter", "nothing"):
    torch.manual_seed(rank if what == "weights" else 0)
    tta = learner(TwoStages().eval(), SpearConfig(tau=0.1 if what == "tau" and rank else 0.0), accelerator=accelerator)
    if what == "adapter" and rank:
        tta.model.restore({key: value + 0.1 for key, value in tta.model.snapshot().items()})
    try:
        tta.step(torch.randn(4, 3, 16, 16))
        lines.append(f"{what}: stepped")
    except LaunchError as error:
        lines.append(f"{what}: {error}")
open(f"{sys.argv[1]}/{rank}", "w").write("\\n".join(lines))
"""


@pytest.mark.slow
def test_ranks_that_differ_are_told_what_differs(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(SCRIPT)
    done = run_in_two_processes(str(tmp_path / "ranks.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    for rank in "01":
        tau, weights, adapter, nothing = (tmp_path / rank).read_text().split("\n")
        assert tau.startswith("tau: process 1 has another configuration (tau: 0.1, on process 0 0.0) than process 0")
        assert weights.startswith("weights: process 1 has another base model (other weights")
        assert adapter.startswith("adapter: process 1 has an adapter of other values than process 0")
        assert nothing == "nothing: stepped"
