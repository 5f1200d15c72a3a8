"""The real command, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spear_hf.cli import app
from tests.conftest import ROOT
from tests.hub_server import Fault, LoopbackHub

FOG = ROOT / "hub_cards" / "resnet-fog"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
COMMANDS = [str(info.name or (info.callback and info.callback.__name__)) for info in app.registered_commands]


def spear(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spear_hf.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "120"})


def printed(*words: str | Path) -> dict[str, object]:
    """What a command prints with --json."""
    done = spear(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- every command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_json(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"Example: spear-hf {command} " in text
    assert "--json" in text


def test_help_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "timm", "datasets", "numpy", "matplotlib", "huggingface_hub")
    code = f"import spear_hf.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_is_quick() -> None:
    """In time of the processor, which a busy machine does not change."""
    before = os.times().children_user
    spear("--help")
    assert os.times().children_user - before < 0.5


def test_an_error_is_one_line_and_exit_code_2() -> None:
    done = spear("boundaries", "resnett")
    assert done.returncode == 2
    assert done.stderr.startswith("ModelNotFoundError: 'resnett' is no folder")


def test_an_unknown_option_is_exit_code_2() -> None:
    assert spear("boundaries", "resnet18", "--no-such-option").returncode == 2


# --- boundaries and corrupt -------------------------------------------------------------------------------------------


def test_boundaries_prints_where_rsps_can_sit() -> None:
    rows = json.loads(spear("boundaries", "resnet18", "--json").stdout)
    assert [(row["module"], row["channels"], row["auto"]) for row in rows][:2] == [
        ("maxpool", 64, True),
        ("layer1.1", 64, True),
    ]


def test_corrupt_writes_a_copy_and_a_contact_sheet(tmp_path: Path, embedded: Path) -> None:
    images = str(embedded / "test.parquet")
    done = spear("corrupt", images, tmp_path / "c", "--corruptions", "fog", "--preset", "cifar", "--limit", "8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "data" / "fog" / "severity_5" / "data.parquet").is_file()
    done = spear("corrupt", images, tmp_path / "sheet.png", "--sheet", "--preset", "cifar")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_corruption_leaves_nothing_behind(tmp_path: Path, embedded: Path) -> None:
    done = spear("corrupt", embedded / "test.parquet", tmp_path / "c", "--corruptions", "fogg")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("DataError: ")
    assert list(tmp_path.iterdir()) == []


# --- the Hub and back -------------------------------------------------------------------------------------------------


def test_push_and_pull_are_a_round_trip(hub: LoopbackHub, tmp_path: Path) -> None:
    pushed = printed("push", FOG, "resnet-fog", "--private")
    assert hub.repos["me/resnet-fog"].private
    assert str(pushed["commit_url"]).endswith(f"/me/resnet-fog/commit/{pushed['commit']}")
    pulled = printed("pull", "me/resnet-fog", tmp_path / "fog")
    assert pulled["files"] == ["README.md", CONFIG, WEIGHTS, "metrics.json"]
    assert (tmp_path / "fog" / WEIGHTS).read_bytes() == (FOG / WEIGHTS).read_bytes()


def test_push_to_a_branch_and_a_subfolder(hub: LoopbackHub, tmp_path: Path) -> None:
    where = ("--subfolder", "fog/5", "--revision", "v1")
    done = spear("push", FOG, "me/rsps", *where, "--message", "Add fog")
    assert done.returncode == 0, done.stderr
    assert f"fog/5/{WEIGHTS}" in hub.head("me/rsps", "v1")
    assert f"fog/5/{WEIGHTS}" not in hub.head("me/rsps")
    assert spear("pull", "me/rsps", tmp_path / "fog", *where).returncode == 0
    assert (tmp_path / "fog" / CONFIG).is_file()


def test_push_opens_a_pull_request_on_a_repo_of_someone_else(hub: LoopbackHub) -> None:
    hub.put("you/fog", {"README.md": b"# empty\n"})
    assert str(printed("push", FOG, "you/fog", "--pr")["pr_url"]).endswith("/you/fog/discussions/1")
    assert WEIGHTS not in hub.head("you/fog")


def test_refusals_of_the_hub_are_one_line_and_exit_code_2(hub: LoopbackHub, tmp_path: Path) -> None:
    done = spear("pull", "me/nowhere", tmp_path / "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().splitlines()[-1].startswith("RepositoryNotFoundError: 404")
    done = spear("push", tmp_path, "me/nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("AdapterFormatError: ")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_fails_is_exit_code_1(hub: LoopbackHub) -> None:
    hub.faults.append(Fault(r"POST /api/repos/create", times=99, status=500))
    done = spear("push", FOG, "me/fog")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("HfHubHTTPError: ")


# --- bank -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bank_chooses_the_adapter_of_the_weather(hub: LoopbackHub, embedded: Path) -> None:
    assert spear("push", FOG, "me/fog").returncode == 0
    cards, images = ROOT / "hub_cards", ("--corruptions", "contrast", "--preset", "cifar", "--limit", "128")
    words = ("bank", embedded / "resnet", embedded / "test.parquet", cards / "resnet-contrast", "me/fog")
    found = printed(*words, *images, "--batches", "2")
    assert (found["chosen"], found["images"]) == ("resnet-contrast", 128)
    assert isinstance(found["scores"], list)
    assert {score["adapter"] for score in found["scores"]} == {"identity", "fog", "resnet-contrast"}
