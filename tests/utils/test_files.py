import os
from pathlib import Path

import pytest

from spear_hf.utils.files import write_atomically


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "a.txt", "a long first text")
    assert write_atomically(tmp_path / "new" / "a.txt", "ü").read_bytes() == "ü".encode()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "a.txt", b"old")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = write_atomically(tmp_path / "a.txt", "text")
        assert os.umask(0o027) == 0o027  # as it was
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
