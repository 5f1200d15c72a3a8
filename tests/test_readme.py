"""Every block of the README runs as it is pasted, in its order, in a copy of the repository's root."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import OFFLINE, ROOT

BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
SHELL = [block for kind, block in BLOCKS if kind == "bash" and block != ".ci/run --fast\n"]
CAREFUL = "set -eu; trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"
FEWER = {
    r"python3 -m venv \.venv && ": "",  # the tests run in an environment already
    r"\.venv/bin/pip install [^&]*&& ": "",
    r"^source .*\n": "",
    r"^pip install .*\n": "",
    r"(examples/adapt\.py)\n": r"\1 --limit 16 --batch-size 16\n",  # of 1,024 images, which take minutes
}
"""What a block is spared here; `.ci/run --fast`, which sets up the tests themselves, is left out."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the blocks read, and `python` and `spear-hf` of this environment on the path."""
    root = tmp_path_factory.mktemp("readme")
    for name in ("examples", "hub_cards", "benchmarks"):
        (root / name).symlink_to(ROOT / name)
    (root / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "torchrun"):
        script = root / ".venv" / "bin" / name
        module = " -m torch.distributed.run" if name == "torchrun" else ""
        script.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        script.chmod(0o755)
    command = root / ".venv" / "bin" / "spear-hf"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spear_hf "$@"\n')
    command.chmod(0o755)
    return root


def run(root: Path, words: list[str]) -> str:
    path = f"{root / '.venv' / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(words, cwd=root, env=OFFLINE | {"PATH": path}, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_the_readme_has_two_commands_first_and_then_the_everyday_job() -> None:
    text = "\n".join(block for _, block in BLOCKS[:3])
    assert BLOCKS[0][1].endswith("examples/adapt.py\n")
    assert BLOCKS[1][1] == ".ci/run --fast\n"
    assert "spear-hf adapt examples/fashion_mnist/resnet foggy/fog/5" in text


@pytest.mark.slow
@pytest.mark.timeout(900)  # eleven commands, each of which starts a process
@pytest.mark.parametrize("commands", SHELL, ids=lambda commands: commands.split()[0])
def test_a_block_of_commands_runs_as_it_is_pasted(root: Path, commands: str) -> None:
    here = commands
    for pattern, fewer in FEWER.items():
        here = re.sub(pattern, fewer, here, flags=re.M)
    printed = run(root, ["bash", "-c", f"{CAREFUL}\n{here}"])
    assert commands != SHELL[0] or "│ mean " in printed  # the table of the main job


@pytest.mark.slow
def test_the_blocks_of_python_run_one_after_another(root: Path) -> None:
    run(root, [sys.executable, "-c", "\n".join(block for kind, block in BLOCKS if kind == "python")])
