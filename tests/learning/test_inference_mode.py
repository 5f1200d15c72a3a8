"""States that are made, loaded or reset under inference mode: what they hold must be learned on afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spear_hf import Spear, SpearConfig
from spear_hf.learning.stream_state import StreamState
from tests.builders import TwoStages, learner

NAMES: list[Any] = [None, "cam"]


def spear() -> Spear:
    torch.manual_seed(0)
    return learner(TwoStages().eval())


def batches(count: int) -> list[Tensor]:
    return list(torch.randn(count, 4, 3, 16, 16, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_goes_on_from_a_state_that_was_loaded_under_inference_mode(name: str | None) -> None:
    first, second, third = batches(3)
    tta, fresh = spear(), spear()
    tta.step(first, streams=name)
    with torch.inference_mode():
        fresh.load_state_dict(tta.state_dict())
    for x in (second, third):
        assert torch.equal(fresh.step(x, streams=name), tta.step(x, streams=name))


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_that_was_reset_under_inference_mode_learns_again(name: str | None) -> None:
    first, second = batches(2)
    tta = spear()
    expected = [tta.step(x, streams=name) for x in (first, second)]
    with torch.inference_mode():
        (tta.stream if name is None else tta.streams[name]).reset()
    assert all(torch.equal(tta.step(x, streams=name), y) for x, y in zip((first, second), expected, strict=True))


def test_a_stream_that_was_read_from_disk_under_inference_mode_learns_on(tmp_path: Path) -> None:
    first, second = batches(2)
    tta, fresh = spear(), spear()
    tta.step(first, streams="cam")
    path = tta.streams["cam"].save(tmp_path / "cam")
    with torch.inference_mode():
        fresh.streams.load("cam", path)
    assert torch.equal(fresh.step(second, streams="cam"), tta.step(second, streams="cam"))


def test_a_state_made_under_inference_mode_holds_ordinary_tensors() -> None:
    with torch.inference_mode():
        state = StreamState(SpearConfig(), {"0.gamma": torch.ones(8), "0.beta": torch.zeros(8)})
        assert not state.flat.is_inference()
        assert not state.learned.moments.exp_avg.is_inference()
