import json
import subprocess
import sys
from pathlib import Path


def spear(*words: str) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    return subprocess.run([sys.executable, "-m", "spear_hf.cli", *words], capture_output=True, text=True, check=False)


def test_boundaries_prints_where_rsps_can_sit() -> None:
    rows = json.loads(spear("boundaries", "resnet18", "--json").stdout)
    assert [(row["module"], row["channels"], row["auto"]) for row in rows][:2] == [
        ("maxpool", 64, True),
        ("layer1.1", 64, True),
    ]


def test_an_error_is_one_line_and_exit_code_2() -> None:
    done = spear("boundaries", "resnett")
    assert done.returncode == 2
    assert done.stderr.startswith("ModelNotFoundError: 'resnett' is no folder")


def test_help_shows_an_example() -> None:
    assert "spear-hf boundaries resnet50" in spear("boundaries", "--help").stdout


def test_corrupt_writes_a_copy_and_a_contact_sheet(tmp_path: Path, embedded: Path) -> None:
    images = str(embedded / "test.parquet")
    done = spear("corrupt", images, str(tmp_path / "c"), "--corruptions", "fog", "--preset", "cifar", "--limit", "8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "data" / "fog" / "severity_5" / "data.parquet").is_file()
    done = spear("corrupt", images, str(tmp_path / "sheet.png"), "--sheet", "--preset", "cifar")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_corruption_leaves_nothing_behind(tmp_path: Path, embedded: Path) -> None:
    done = spear("corrupt", str(embedded / "test.parquet"), str(tmp_path / "c"), "--corruptions", "fogg")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("DataError: ")
    assert list(tmp_path.iterdir()) == []
