"""spear-hf push, pull and bank."""

from pathlib import Path

import pytest

from tests.builders import printed, spear_hf
from tests.conftest import ROOT
from tests.hub_server import Fault, LoopbackHub

FOG = ROOT / "hub_cards" / "resnet-fog"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def test_push_and_pull_are_a_round_trip(hub: LoopbackHub, tmp_path: Path) -> None:
    pushed = printed("push", FOG, "resnet-fog", "--private")
    assert hub.repos["me/resnet-fog"].private
    assert str(pushed["commit_url"]).endswith(f"/me/resnet-fog/commit/{pushed['commit']}")
    pulled = printed("pull", "me/resnet-fog", tmp_path / "fog")
    assert pulled["files"] == ["README.md", CONFIG, WEIGHTS, "metrics.json"]
    assert (tmp_path / "fog" / WEIGHTS).read_bytes() == (FOG / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_push_to_a_branch_and_a_subfolder(hub: LoopbackHub, tmp_path: Path) -> None:
    where = ("--subfolder", "fog/5", "--revision", "v1")
    done = spear_hf("push", FOG, "me/rsps", *where, "--message", "Add fog")
    assert done.exit_code == 0, done.stderr
    assert f"fog/5/{WEIGHTS}" in hub.head("me/rsps", "v1")
    assert f"fog/5/{WEIGHTS}" not in hub.head("me/rsps")
    assert spear_hf("pull", "me/rsps", tmp_path / "fog", *where).exit_code == 0
    assert (tmp_path / "fog" / CONFIG).is_file()


@pytest.mark.slow
def test_push_opens_a_pull_request_on_a_repo_of_someone_else(hub: LoopbackHub) -> None:
    hub.put("you/fog", {"README.md": b"# empty\n"})
    assert str(printed("push", FOG, "you/fog", "--pr")["pr_url"]).endswith("/you/fog/discussions/1")
    assert WEIGHTS not in hub.head("you/fog")


def test_refusals_of_the_hub_are_one_line_and_exit_code_2(hub: LoopbackHub, tmp_path: Path) -> None:
    done = spear_hf("pull", "me/nowhere", tmp_path / "a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip().splitlines()[-1].startswith("RepositoryNotFoundError: 404")
    done = spear_hf("push", tmp_path, "me/nothing")
    assert done.exit_code == 2
    assert done.stderr.startswith("AdapterFormatError: ")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_fails_is_exit_code_1(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # huggingface_hub waits before it tries again
    hub.faults.append(Fault(r"POST /api/repos/create", times=99, status=500))
    done = spear_hf("push", FOG, "me/fog")
    assert done.exit_code == 1
    assert done.stderr.strip().splitlines()[-1].startswith("HfHubHTTPError: ")


@pytest.mark.slow
def test_bank_chooses_the_adapter_of_the_weather(hub: LoopbackHub, embedded: Path) -> None:
    assert spear_hf("push", FOG, "me/fog").exit_code == 0
    cards, images = ROOT / "hub_cards", ("--corruptions", "contrast", "--preset", "cifar", "--limit", "128")
    words = ("bank", embedded / "resnet", embedded / "test.parquet", cards / "resnet-contrast", "me/fog")
    found = printed(*words, *images, "--batches", "2")
    assert (found["chosen"], found["images"]) == ("resnet-contrast", 128)
    assert {score["adapter"] for score in found["scores"]} == {"identity", "fog", "resnet-contrast"}
