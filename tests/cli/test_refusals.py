"""What a user reads when something goes wrong."""

from pathlib import Path

import pytest

from spear_hf.cli import script
from spear_hf.cli.refusals import in_flags
from tests.builders import invoked, spear_hf
from tests.conftest import EMBEDDED

OPTIONS = ("tau", "label_column", "fresh", "page", "boundaries", "image_size", "skip_broken")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("tau=2.0 is not allowed", "--tau 2.0 is not allowed"),
        ("pass label_column=None, or fresh=True", "pass --label-column none, or --fresh"),
        ("boundaries=(0, 7) names depth 7", "--boundaries (0, 7) names depth 7"),
        ("pass tau= or size= instead", "pass --tau or --image-size instead"),
        ("page=False leaves it out", "--no-page leaves it out"),
        ("split='test[:3]' stays, as x=1 does", "split='test[:3]' stays, as x=1 does"),
    ],
)
def test_arguments_are_shown_as_flags(message: str, shown: str) -> None:
    assert in_flags(message, OPTIONS) == shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file", "photo.jpg"), 2),
        (PermissionError(13, "Permission denied", "/root/x"), 2),
        (OSError(28, "No space left on device"), 1),
        (ConnectionError("refused"), 1),
    ],
)
def test_an_error_of_the_machine_is_one_line(error: Exception, code: int) -> None:
    def fail() -> None:
        raise error

    done = invoked(script(fail, "Fail."))
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert str(error) in done.stderr


def test_a_bug_keeps_its_traceback() -> None:
    def fail() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        invoked(script(fail, "Fail."))


def test_a_server_that_is_not_there_is_one_line() -> None:
    import httpx

    def fail() -> None:
        httpx.get("http://127.0.0.1:9")

    done = invoked(script(fail, "Fail."))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "the server cannot be reached" in done.stderr


def test_an_output_that_is_a_file_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for output in (tmp_path / "taken", tmp_path / "taken" / "below"):
        done = spear_hf("adapt", EMBEDDED / "resnet", tmp_path, "--output", output)
        assert done.exit_code == 2
        assert "taken is a file; name a folder" in done.stderr
