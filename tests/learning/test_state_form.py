import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import CheckpointError
from tests.builders import steered

Change = tuple[str, Any]


@pytest.fixture
def tta(net: nn.Module, images: Tensor) -> Spear:
    made = Spear(steered(net, SpearConfig()))
    for part in images[:4].split(2) * 2:
        made.step(part, streams="cam")
        made.step(part)
    return made


def changed(state: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The state with another value at this dotted path; a function is given the old one."""
    state = copy.deepcopy(state)
    *outer, last = (int(name) if name.isdigit() else name for name in path.split("."))
    part: Any = state
    for name in outer:
        part = part[name]
    part[last] = value(part[last]) if callable(value) else value
    return state


ENTRIES: list[Change] = [
    ("num_steps", -1),
    ("rsp", lambda values: {key: t * 0 + 3e38 for key, t in values.items()}),
    ("start", lambda values: {key: t * 0 + 3e38 for key, t in values.items()}),
    ("statistics.mean", lambda t: t * 0 + 1e30),
    ("statistics.variance", lambda t: t * 0 - 1),
    ("statistics.weight", lambda t: t[:0]),
    ("statistics.weight", lambda t: t[None]),
    ("jump.batches", "x"),
    ("jump.batches", -1),
    ("jump.usual", lambda usual: dict.fromkeys(usual, 10**400)),
    ("trial.shares", lambda t: t.long()),
    ("trial.shares", lambda t: t[:1]),
    ("trial.count", 10**400),
    ("skew.before", lambda t: t.flatten()),
    ("skew.mean", lambda t: torch.cat([t, t])),
    ("skew.sums", lambda t: t[0]),
    ("skew.is_of_few", torch.ones(3)),
    ("seen.mean", lambda t: t[:0]),
    ("seen.weight", 1.5),
]
OWN: list[Change] = [
    ("optimizer.state.0.exp_avg_sq", lambda t: t * 0 - 1),
    ("optimizer.state.0.exp_avg", lambda t: t * 0 + 3e38),
    ("optimizer.state.0.exp_avg", None),
    ("optimizer.state.0.step", -1),
    ("optimizer.param_groups.0.lr", -1.0),
    ("optimizer.param_groups.0.betas", 7),
    ("optimizer.param_groups.0.eps", 10**400),
    ("optimizer.param_groups.0.amsgrad", True),
]
NAMED: list[Change] = [
    ("optimizer.exp_avg_sq", lambda t: t * 0 - 1),
    ("optimizer.exp_avg", lambda t: t * 0 + 3e38),
    ("optimizer.step", torch.tensor(-1.0)),
    ("optimizer.step", 0.5),
]


@pytest.mark.parametrize("name", [None, "cam"])
def test_an_entry_out_of_its_range_is_refused_and_nothing_is_changed(tta: Spear, name: str | None) -> None:
    stream = tta.stream if name is None else tta.streams[name]
    state = stream.state_dict()
    before = repr(state)
    for path, value in ENTRIES + (OWN if name is None else NAMED):
        with pytest.raises(CheckpointError, match=r"allowed is|different sizes|not finite|another form"):
            stream.load_state_dict(changed(state, path, value))
    assert repr(stream.state_dict()) == before


def test_the_error_names_the_entry_and_what_is_allowed(tta: Spear) -> None:
    state = changed(tta.stream.state_dict(), "seen.weight", 1.5)
    with pytest.raises(CheckpointError, match=r"seen\.weight is 1\.5, allowed is a number in \[0, 1\]; resume from"):
        tta.stream.load_state_dict(state)


def test_a_rate_that_the_user_has_changed_comes_back(tta: Spear) -> None:
    state = changed(tta.stream.state_dict(), "optimizer.param_groups.0.lr", 0.5)
    tta.stream.load_state_dict(state)
    assert tta.stream.optimizer.param_groups[0]["lr"] == 0.5
