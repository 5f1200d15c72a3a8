"""examples/share.py as a user runs it: a real process that learns on embedded images and pushes over loopback."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spear_hf import SpearModel, load_base_model
from tests.conftest import EMBEDDED, ROOT
from tests.hub_server import LoopbackHub


def shard(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/share.py", "--learn_images", "128", "--test_images", "64", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.slow
def test_an_adapter_is_learned_measured_and_pushed(hub: LoopbackHub, tmp_path: Path) -> None:
    done = shard("--output", str(tmp_path / "fog"), "--push", "me/resnet-fog", "--private", "True")
    assert done.returncode == 0, done.stderr
    assert hub.repos["me/resnet-fog"].private
    card = hub.head("me/resnet-fog")["README.md"].decode()
    assert "| fog/5 | 128 |" in card
    assert "| clean | 64 |" in card
    base, x = load_base_model(str(EMBEDDED / "resnet")), torch.randn(4, 3, 64, 64)
    pushed = SpearModel.from_pretrained(base, "me/resnet-fog")
    answer = pushed(x).logits
    kept = SpearModel.from_pretrained(pushed.unload(), tmp_path / "fog")
    assert torch.equal(kept(x).logits, answer)


@pytest.mark.slow
def test_several_corruptions_make_no_single_adapter(tmp_path: Path) -> None:
    done = shard("--corruptions", "fog,snow", "--output", str(tmp_path / "both"))
    assert done.stderr.strip().splitlines()[-1].startswith("SpearError: 2 corruptions")
    assert not (tmp_path / "both").exists()
