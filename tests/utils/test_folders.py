import os
from pathlib import Path

import pytest

from spear_hf.errors import OutputError
from spear_hf.utils import folders
from spear_hf.utils.files import TEMPORARY, locked, sweep
from spear_hf.utils.folders import JOURNAL, settle, staged_folder, write_together

OLD, NEW = {"x.txt": b"old", "y.txt": b"old"}, {"x.txt": b"new", "y.txt": None, "z.txt": b"new"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(params=["exchange", "journal"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with old files and one more; another folder in it rules the exchange out."""
    made = write_together(tmp_path / "fog", OLD)
    (made / "notes.txt").write_bytes(b"mine")
    if request.param == "journal":
        (made / "inner").mkdir()
    assert folders._can_be_exchanged(made) is (request.param == "exchange")
    return made


def test_files_are_replaced_together_and_others_stay(folder: Path) -> None:
    write_together(folder, NEW)
    assert contents(folder) == {"x.txt": b"new", "z.txt": b"new", "notes.txt": b"mine"}
    assert os.listdir(folder.parent) == ["fog"]


def test_a_folder_keeps_its_permissions_and_a_link_stays_a_link(folder: Path) -> None:
    folder.chmod(0o750)
    link = folder.with_name("link")
    link.symlink_to(folder.name)
    write_together(link, NEW)
    assert link.is_symlink()
    assert (folder / "x.txt").read_bytes() == b"new"
    assert folder.stat().st_mode & 0o777 == 0o750


def test_an_error_leaves_the_old_files_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"fog cannot be written \(No space left on device\); make room on the disk"):
        write_together(folder, NEW)
    assert contents(folder) == {**OLD, "notes.txt": b"mine"}
    assert os.listdir(folder.parent) == ["fog"]


def test_a_save_killed_while_it_moved_files_is_finished(tmp_path: Path) -> None:
    write_together(tmp_path, OLD)
    journal = tmp_path / JOURNAL
    journal.mkdir()
    (journal / "x.txt").write_bytes(b"new")
    (journal / "y.txt.deleted").touch()
    settle(tmp_path)
    assert contents(tmp_path) == {"x.txt": b"new"}
    assert not journal.exists()


def test_what_killed_processes_left_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    dead, alive = tmp_path / f".fog.1{TEMPORARY}", tmp_path / f".fog.2{TEMPORARY}"
    dead.mkdir()
    (dead / "half").touch()
    alive.mkdir()
    (tmp_path / ".hidden").touch()
    handle = os.open(alive, os.O_RDONLY)
    assert locked(handle)
    assert sweep(tmp_path) == 1
    os.close(handle)
    with staged_folder(tmp_path / "fog"):
        assert not alive.exists()
    assert sorted(os.listdir(tmp_path)) == [".hidden", "fog"]


def test_a_target_that_is_not_empty_is_refused_and_kept(tmp_path: Path) -> None:
    write_together(tmp_path / "fog", OLD)
    with pytest.raises(OutputError, match="fog cannot be written"), staged_folder(tmp_path / "fog"):
        pass
    assert contents(tmp_path / "fog") == OLD
