from pathlib import Path

import pytest
from torch import nn

from spear_hf.backbones.origin import Origin, is_hub_id, origin_of


@pytest.mark.parametrize("name", ["resnet18", "./a/b", "a/b/c", "/a/b", "a/..", "a/b--c", ""])
def test_these_are_no_hub_ids(name: str) -> None:
    assert not is_hub_id(name)
    assert is_hub_id("microsoft/resnet-50")


def test_a_folder_of_that_name_is_not_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Origin("timm", "models/resnet").hub_id == "models/resnet"
    (tmp_path / "models" / "resnet").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert Origin("timm", "models/resnet").hub_id is None


@pytest.mark.parametrize(
    ("name", "is_private"), [("/home/me/a", True), ("~/a", True), ("models/a", False), (None, False)]
)
def test_absolute_paths_are_private(name: str | None, is_private: bool) -> None:
    assert Origin("transformers", name).is_private_path is is_private


def test_a_model_of_ones_own_has_no_name() -> None:
    assert origin_of(nn.Linear(3, 2)) == Origin("torch", None, None)
