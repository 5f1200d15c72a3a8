from pathlib import Path

import pytest

from spear_hf.backbones.factory import build_own, is_factory
from spear_hf.errors import ModelNotFoundError

OWN = """
from torch import nn
net = nn.Linear(2, 3)
def make(): return nn.Linear(2, 4)
def words(): return "no model"
def broken(): raise RuntimeError("no weights here")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models"


def test_a_factory_or_a_model_in_the_working_directory_is_found(own: str) -> None:
    assert build_own(f"{own}:make").out_features == 4
    assert build_own(f"{own}:net").out_features == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_models:nothing", "could not be imported"),
        ("no_such_package:make", "could not be imported"),
        ("own_models:words", "returned a str; it must return a torch.nn.Module"),
        ("own_models:broken", "RuntimeError: no weights here"),
    ],
)
def test_what_is_no_factory_is_said(own: str, name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        build_own(name)


@pytest.mark.parametrize("name", ["resnet50.a1_in1k", "local-dir:runs/x", "C:\\models", "me/net", "hf-hub:me/net"])
def test_other_names_are_no_factory(name: str) -> None:
    assert not is_factory(name)
