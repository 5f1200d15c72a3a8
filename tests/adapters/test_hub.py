"""The unpatched huggingface_hub client against a server on loopback."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from torch import Tensor, nn

from spear_hf import get_spear_model
from spear_hf.adapters.download import LONGEST_PAUSE, _pause, fetch, pull
from spear_hf.adapters.upload import push
from spear_hf.errors import AdapterFormatError, AdapterSaveError
from spear_hf.steering.model import SpearModel
from tests.conftest import ROOT
from tests.hub_server import Fault, LoopbackHub

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
REPO = "me/tiny-fog"


def commits(hub: LoopbackHub, repo: str = REPO) -> int:
    return len(hub.repos[repo].commits)


def adapter_files(model: SpearModel, folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.save_pretrained(folder).iterdir()}


def test_a_pushed_adapter_answers_bit_for_bit_after_the_round_trip(
    hub: LoopbackHub, model: SpearModel, images: Tensor
) -> None:
    expected = model(images)
    model.push_to_hub(REPO)
    again = SpearModel.from_pretrained(model.unload(), REPO)
    assert torch.equal(again(images), expected)


def test_a_push_is_one_commit_of_three_files_and_a_second_push_none(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub("tiny-fog")
    assert commits(hub) == 2  # the repo's first, and ours
    assert sorted(hub.head(REPO)) == [".gitattributes", "README.md", CONFIG, WEIGHTS]
    model.push_to_hub("tiny-fog")
    assert commits(hub) == 2


def test_the_pushed_card_names_the_repo(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    assert f'SpearModel.from_pretrained(base, "{REPO}")' in hub.head(REPO)["README.md"].decode()


def test_a_card_written_by_a_person_is_pushed_as_it_is(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "fog")
    (folder / "README.md").write_text("# mine\n")
    model.save_pretrained(folder)
    push(folder, REPO)
    assert hub.head(REPO)["README.md"] == b"# mine\n"


@pytest.mark.slow
def test_a_private_repo_does_not_exist_for_strangers(
    hub: LoopbackHub, model: SpearModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.push_to_hub(REPO, private=True)
    assert fetch(REPO).is_dir()
    monkeypatch.setenv("HF_TOKEN", "hf_you")
    with pytest.raises(RepositoryNotFoundError):
        fetch(REPO)
    assert fetch(REPO, token="hf_me").is_dir()


def test_a_gated_repo_says_so(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    hub.put("you/gated", adapter_files(model, tmp_path / "a"), gated=True)
    with pytest.raises(GatedRepoError):
        fetch("you/gated")


@pytest.mark.slow
def test_a_branch_is_made_and_pulled_by_name(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    first = fetch(REPO)
    model.set_scale(0.5)
    info = model.push_to_hub(REPO, revision="half")
    assert fetch(REPO) == first
    assert fetch(REPO, revision="half") != first
    assert fetch(REPO, revision=info.oid) == fetch(REPO, revision="half")


@pytest.mark.slow
def test_a_pull_request_to_someone_elses_repo(hub: LoopbackHub, model: SpearModel) -> None:
    hub.put("you/fog", {"README.md": b"# empty\n"})
    info = model.push_to_hub("you/fog", create_pr=True)
    assert info.pr_url is not None
    assert WEIGHTS not in hub.head("you/fog")
    assert fetch("you/fog", revision="refs/pr/1").is_dir()


def test_a_stranger_cannot_push(hub: LoopbackHub, model: SpearModel) -> None:
    hub.put("you/fog", {"README.md": b"# empty\n"})
    with pytest.raises(HfHubHTTPError):
        model.push_to_hub("you/fog")


@pytest.mark.slow
def test_subfolders_hold_several_adapters_of_one_repo(hub: LoopbackHub, model: SpearModel, images: Tensor) -> None:
    fog = model(images)
    model.push_to_hub(REPO, subfolder="fog/5")
    model.set_scale(0.5)
    model.push_to_hub(REPO, subfolder="snow")
    with pytest.raises(AdapterFormatError, match=r"holds the adapters \['fog/5', 'snow'\]: pass subfolder="):
        fetch(REPO)
    model.load_adapter(REPO, "fog", subfolder="fog/5")
    model.set_adapter("fog")
    assert torch.equal(model(images), fog)


def test_a_repo_without_an_adapter_says_so(hub: LoopbackHub) -> None:
    hub.put("you/model", {"config.json": b"{}"})
    with pytest.raises(AdapterFormatError, match="holds no SPeaR adapter"):
        fetch("you/model")


def test_errors_of_the_hub_are_kept(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        fetch("me/nowhere")
    files = adapter_files(model, tmp_path / "a")
    hub.put(REPO, {CONFIG: files[CONFIG]})
    with pytest.raises(RevisionNotFoundError):
        fetch(REPO, revision="v9")
    with pytest.raises(EntryNotFoundError):
        fetch(REPO)


BUSY = {"Retry-After": "0.05"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again_when_it_says_so(hub: LoopbackHub, model: SpearModel, status: int) -> None:
    model.push_to_hub(REPO)
    hub.faults.append(Fault(r"HEAD .*/resolve/", times=2, status=status, headers=BUSY))
    began = time.monotonic()
    assert fetch(REPO).is_dir()
    assert 0.1 <= time.monotonic() - began < 0.9


@pytest.mark.slow  # huggingface_hub itself asks for a file five times, with pauses of up to 8 seconds
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_busy_leaves_the_cache_to_answer(hub: LoopbackHub, model: SpearModel, status: int) -> None:
    model.push_to_hub(REPO)
    whole = fetch(REPO)
    model.set_scale(0.5)
    model.push_to_hub(REPO)  # a commit of which the cache gets no file, or one of two
    for pattern in (r"/resolve/", rf"GET .*{WEIGHTS}"):
        hub.faults[:] = [Fault(pattern, times=999, status=status, headers=BUSY)]
        assert fetch(REPO) == whole
        assert (pull(REPO, whole.with_name("pulled")) / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    hub.faults.clear()
    assert fetch(REPO) != whole


def test_a_busy_server_and_no_copy_is_an_error_that_says_both(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    hub.faults.append(Fault(rf"(HEAD|GET) .*{WEIGHTS}", times=999, status=429, headers={"Retry-After": "0"}))
    with pytest.raises(LocalEntryNotFoundError, match=r"cannot be reached \(.*429.*and the cache does not hold all"):
        fetch(REPO)


@pytest.mark.parametrize("asked", ["nan", "-3", "9e99", "Thu, 01 Jan 1970 00:00:00 GMT", "soon", ""])
def test_a_pause_is_bounded_whatever_the_server_asks_for(asked: str) -> None:
    response = httpx.Response(429, headers={"Retry-After": asked}, request=httpx.Request("GET", "http://hub"))
    assert 0 <= _pause(HfHubHTTPError("busy", response=response), 0) <= LONGEST_PAUSE


@pytest.mark.parametrize("etag", ['"abc"', 'W/"1-2"', "none"])
def test_a_hash_is_checked_whatever_the_etag_looks_like(hub: LoopbackHub, model: SpearModel, etag: str) -> None:
    model.push_to_hub(REPO)
    odd = Fault(WEIGHTS, times=999, headers={"ETag": etag})
    flip = Fault(rf"GET .*{WEIGHTS}", 1, change=lambda d: d[:-1] + bytes([d[-1] ^ 1]), headers={"ETag": etag})
    hub.faults[:] = [flip, odd]
    with pytest.raises(AdapterFormatError, match="does not have its hash"):
        fetch(REPO)
    assert fetch(REPO).is_dir()


def test_without_any_hash_nothing_is_trusted(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    hub.faults[:] = [
        Fault(r"/tree/", 9, change=lambda data: data.replace(b'"oid": "', b'"oid": "x')),
        Fault(r"/resolve/", times=9, headers={"ETag": '"abc"'}),
    ]
    with pytest.raises(AdapterFormatError, match=r"names no hash of adapter_config\.json"):
        fetch(REPO)


def test_tampered_bytes_are_refused_and_fetched_again(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    flip = Fault(rf"GET .*{WEIGHTS}", times=1, change=lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    hub.faults.append(flip)
    with pytest.raises(AdapterFormatError, match="does not have its hash"):
        fetch(REPO)
    assert fetch(REPO).is_dir()


def test_a_cached_file_that_was_changed_on_disk_is_refused(hub: LoopbackHub, model: SpearModel) -> None:
    model.push_to_hub(REPO)
    path = (fetch(REPO) / CONFIG).resolve()
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.9", 1))
    with pytest.raises(AdapterFormatError, match="changed on the way or on disk"):
        fetch(REPO)


def test_a_file_too_large_is_not_downloaded(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    hub.put(REPO, adapter_files(model, tmp_path / "a") | {CONFIG: b" " * 1_000_001})
    with pytest.raises(AdapterFormatError, match="1,000,001 bytes"):
        fetch(REPO)
    assert not any(line.startswith("GET") and CONFIG in line for line in hub.requests)


def test_a_push_between_the_two_files_does_not_mix_them(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    model.push_to_hub(REPO)
    before = model.snapshot()

    def push_meanwhile(data: bytes) -> bytes:
        model.set_scale(0.5)
        hub.put(REPO, adapter_files(model, tmp_path / "new"))
        return data

    hub.faults.append(Fault(rf"GET .*{CONFIG}", times=1, change=push_meanwhile))
    again = SpearModel.from_pretrained(model.unload(), REPO)
    torch.testing.assert_close(again.snapshot(), before, rtol=0, atol=0)


def test_pickles_and_other_files_are_never_fetched(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    files = adapter_files(model, tmp_path / "a")
    hub.put(REPO, files | {"adapter_model.bin": b"\x80", "evil.py": b"import os", ".git/hooks/x": b"#!"})
    folder = fetch(REPO)
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]


def test_pull_copies_the_adapter_and_its_card(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    model.push_to_hub(REPO)
    folder = pull(REPO, tmp_path / "mine")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", CONFIG, WEIGHTS]
    assert (folder / WEIGHTS).read_bytes() == hub.head(REPO)[WEIGHTS]


def test_pull_refuses_a_model_folder(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AdapterSaveError, match="own config"):
        pull(REPO, tmp_path)
    assert hub.requests == []


def test_the_identity_and_broken_folders_are_not_pushed(hub: LoopbackHub, net: nn.Module, tmp_path: Path) -> None:
    folder = get_spear_model(net).save_pretrained(tmp_path / "a")
    with pytest.raises(AdapterSaveError, match="identity"):
        push(folder, REPO)
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(AdapterFormatError, match="safetensors"):
        push(folder, REPO)
    assert hub.repos == {}


def test_a_path_of_this_machine_is_not_pushed(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    from spear_hf.backbones.origin import Origin

    model.push_to_hub(REPO, origin=Origin("transformers", str(tmp_path / "secret")))
    assert not any(b"secret" in data for data in hub.head(REPO).values())


@pytest.mark.parametrize("subfolder", ["../x", "/etc", "a/../../b", "a\\b", "c:x"])
def test_places_outside_the_repo_are_refused(hub: LoopbackHub, subfolder: str) -> None:
    with pytest.raises(AdapterFormatError, match="not allowed"):
        fetch(REPO, subfolder=subfolder)


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(AdapterFormatError, match="no revision"):
        fetch(tmp_path, revision="main")


OFFLINE = """
import sys
from huggingface_hub.errors import LocalEntryNotFoundError
from spear_hf.adapters.download import fetch
print(fetch("me/tiny-fog"))
for repo in ("me/partial", "me/nowhere"):
    try:
        fetch(repo)
    except LocalEntryNotFoundError as error:
        print(error)
"""


@pytest.mark.slow
def test_offline_the_cache_answers_if_it_is_whole(hub: LoopbackHub, model: SpearModel, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    model.push_to_hub(REPO)
    whole = fetch(REPO)
    hub.put("me/partial", adapter_files(model, tmp_path / "a"))
    hf_hub_download("me/partial", CONFIG)
    asked = len(hub.requests)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second, third = run.stdout.splitlines()
    assert first == str(whole)
    assert "me/partial (revision main) cannot be reached" in second
    assert "cannot be reached" in third
    assert len(hub.requests) == asked
