import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spear_hf.errors import CheckpointError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.utils.distributed import ProcessGroup

ALONE = ProcessGroup()
STATE = {
    "optimizer": {0: {"exp_avg": torch.arange(3.0), "step": torch.tensor(2.0)}},
    "groups": [{"lr": 0.1}],
    "last": None,
}


class Part:
    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state or {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_state_comes_back_with_its_tensors_and_integer_keys(tmp_path: Path) -> None:
    Checkpoints(tmp_path, {"seed": 1}).save(7, {"method": Part(STATE)})
    part = Part()
    assert Checkpoints(tmp_path, {"seed": 1}).resume(ALONE, {"method": part}) == 7
    assert torch.equal(part.state["optimizer"][0]["exp_avg"], torch.arange(3.0))
    assert (part.state["groups"], part.state["last"]) == ([{"lr": 0.1}], None)


def test_without_a_state_a_run_starts_at_the_beginning(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new", {}).resume(ALONE, {"method": Part()}) == 0


def test_the_newest_two_states_are_kept_and_are_kilobytes(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, {})
    for done in (9, 10, 11):
        kept.save(done, {"method": Part(STATE)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.*")) < 10_000


def test_a_kill_while_writing_leaves_the_state_before(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, {})
    kept.save(1, {"method": Part(STATE)})
    (tmp_path / ".unfinished").mkdir()
    (tmp_path / ".unfinished" / "state.json").write_text("{")
    assert kept.resume(ALONE, {"method": Part()}) == 1
    kept.save(2, {"method": Part(STATE)})
    assert kept.resume(ALONE, {"method": Part()}) == 2


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, {"config": {"tau": 0.1}}).save(1, {"method": Part()})
    with pytest.raises(CheckpointError, match=r"another run \(config: \{'tau': 0\.1\}, here \{'tau': 0\.2\}\)"):
        Checkpoints(tmp_path, {"config": {"tau": 0.2}}).resume(ALONE, {"method": Part()})
    with pytest.raises(CheckpointError, match="are in only one of them"):
        Checkpoints(tmp_path, {"config": {"tau": 0.1}}).resume(ALONE, {"method": Part(), "another": Part()})


def test_a_state_that_cannot_be_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, {}).save(1, {"method": Part(STATE)})
    (path / "state.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="remove that folder to go on from the one before"):
        Checkpoints(tmp_path, {}).resume(ALONE, {"method": Part()})


def test_what_is_no_number_string_or_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"method\.rng is a Generator"):
        Checkpoints(tmp_path, {}).save(1, {"method": Part({"rng": torch.Generator()})})
    assert not list(tmp_path.iterdir())


def test_a_state_is_json_and_safetensors_and_never_pickle(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, {}).save(1, {"method": Part(STATE)})
    assert sorted(p.name for p in path.iterdir()) == ["state.json", "state.safetensors"]
    assert json.loads((path / "state.json").read_text())["done"] == 1
