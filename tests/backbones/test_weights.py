from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spear_hf.backbones.weights import classes_in, put_weights, read_weights
from spear_hf.errors import ModelNotFoundError


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("code ran",))


def test_nothing_in_a_file_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {"w": torch.ones(1)}, "extra": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ModelNotFoundError, match=r"could run code; .*save the weights alone"):
        read_weights(tmp_path / "evil.pth")
    assert capsys.readouterr().out == ""


def test_the_options_of_a_training_script_do_not_stop_the_weights(tmp_path: Path) -> None:
    import argparse

    import numpy as np

    kept = {"args": argparse.Namespace(lr=0.1), "best": np.float64(0.9), "model": {"w": torch.ones(1)}}
    torch.save(kept, tmp_path / "trained.pth")
    assert list(read_weights(tmp_path / "trained.pth")) == ["w"]


def test_two_sets_of_weights_need_a_choice(tmp_path: Path) -> None:
    both = {"state_dict": {"w": torch.zeros(1)}, "state_dict_ema": {"w": torch.ones(1)}}
    torch.save(both, tmp_path / "both.pth")
    with pytest.raises(ModelNotFoundError, match="state_dict, state_dict_ema; choose one with checkpoint_entry="):
        read_weights(tmp_path / "both.pth")
    assert read_weights(tmp_path / "both.pth", "state_dict_ema")["w"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pth", None, "there is no checkpoint"),
        ("text.pth", b"hello", "is no file of torch.save|could run code"),
        ("text.safetensors", b"hello", "is no safetensors file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=message):
        read_weights(tmp_path / name)


def test_what_does_not_fit_is_said_with_the_first_keys_and_changes_nothing() -> None:
    net = nn.Linear(2, 3)
    before = net.weight.clone()
    with pytest.raises(ModelNotFoundError, match=r"the model has bias that the file lacks; the file has extra that"):
        put_weights(net, {"weight": torch.zeros(3, 2), "extra": torch.zeros(1)}, "w.pth")
    with pytest.raises(ModelNotFoundError, match=r"weight is \(3, 5\) in the file and \(3, 2\) in the model"):
        put_weights(net, {"weight": torch.zeros(3, 5), "bias": torch.zeros(3)}, "w.pth")
    assert torch.equal(net.weight, before)


def test_the_head_of_a_checkpoint_tells_its_classes() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 3))
    state = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 8)).state_dict()
    assert classes_in(net, {f"module.{key}": value for key, value in state.items()}) == 8
    assert classes_in(net, net.state_dict()) is None
    assert classes_in(net, nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 8)).state_dict()) is None
