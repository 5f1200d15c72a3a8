import shutil
from pathlib import Path

import pytest
from torch import nn
from transformers import AutoModelForImageClassification

from spear_hf import load_base_model
from spear_hf.backbones.origin import Origin, is_hub_id, origin_of, without_paths


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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/me/models/resnet", "resnet"),
        ("transformers:/home/me/models/resnet@main", "transformers:resnet@main"),
        ("a model at ~/models/resnet/, cropped", "a model at resnet, cropped"),
        (r"C:\Users\me\resnet", "resnet"),
        ("../models/resnet", "resnet"),
        ("fog/5", "fog/5"),
        ("https://host/owner/name", "https://host/owner/name"),
        ("microsoft/resnet-50", "microsoft/resnet-50"),
    ],
)
def test_a_path_in_a_text_is_cut_to_its_last_part(text: str, kept: str) -> None:
    assert without_paths({"streams": [text]}) == {"streams": [kept]}


def test_a_folder_is_never_spelled_like_a_hub_id(
    embedded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(embedded / "resnet", tmp_path / "models" / "resnet")
    monkeypatch.chdir(tmp_path)
    ours = load_base_model("models/resnet")
    theirs = AutoModelForImageClassification.from_pretrained("models/resnet")
    monkeypatch.chdir("/")  # from where nothing tells it from a repo
    for base in (ours, theirs):
        assert origin_of(base) == Origin("transformers", "./models/resnet")
        assert origin_of(base).is_private_path
        assert origin_of(base).hub_id is None
