import json
import subprocess
import sys


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
