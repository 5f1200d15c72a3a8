"""The files around the package agree with it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import spear_hf
from tests.conftest import ROOT

FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version() -> None:
    found = read(ROOT / "CITATION.cff")
    assert (found["cff-version"], found["version"]) == ("1.2.0", spear_hf.__version__)
    assert {"title", "authors", "message"} <= found.keys()


def test_a_commit_is_checked_by_the_commands_of_the_gate() -> None:
    gate = (ROOT / ".ci" / "check").read_text(encoding="utf-8").splitlines()
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in local["hooks"] if hook["entry"] not in gate] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_whole(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids) > 0
