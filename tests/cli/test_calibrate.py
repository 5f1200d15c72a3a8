"""spear-hf calibrate, and the files that adapt and compare take."""

import json
from pathlib import Path

import pytest
import typer

from spear_hf import SpearConfig
from spear_hf.cli import expanded, script
from spear_hf.cli.calibrate import ConfigFile, configured
from tests.builders import invoked, printed, spear_hf
from tests.conftest import EMBEDDED

SHORT = ("--guard", "--no-page", "--tau", "0.01")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.json"
    path.write_text(SpearConfig(alpha=0.75, tau=0.1).to_json())
    return path


@expanded()
def show(config: SpearConfig, context: typer.Context, config_file: ConfigFile = None) -> None:
    found, _ = configured(context, config, config_file)
    print(found.alpha, found.tau)


def test_options_on_the_command_line_go_before_the_file(file: Path) -> None:
    app = script(show, "")
    assert invoked(app).stdout == "0.5 0.0\n"
    assert invoked(app, "--config", file).stdout == "0.75 0.1\n"
    assert invoked(app, "--config", file, "--alpha", "0.5").stdout == "0.5 0.1\n"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    done = spear_hf("adapt", EMBEDDED / "resnet", tmp_path, "--config", EMBEDDED / "resnet" / "config.json")
    assert done.exit_code == 2
    assert "config.json' is no file of spear-hf calibrate, and no SpearConfig: SpearConfig has no field" in done.stderr


def test_few_images_are_refused(tmp_path: Path, photos: Path) -> None:
    done = spear_hf("calibrate", EMBEDDED / "resnet", photos, "--cpu", "--limit", "40", "--output", tmp_path / "c")
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "'--limit': Input should be greater than or equal to 64" in done.stderr


def test_an_output_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    done = spear_hf("calibrate", "no/model", tmp_path, "--output", tmp_path)
    assert done.stderr.startswith("OutputError: ")
    assert "is a folder); give the path of a file" in done.stderr


def test_compare_refuses_a_file_that_no_method_takes(tmp_path: Path, file: Path) -> None:
    done = spear_hf("compare", "no/model", tmp_path, "--methods", "source,tent", "--config", file)
    assert done.exit_code == 2
    assert "is for spear alone; add spear to --methods" in done.stderr


@pytest.mark.slow
def test_clean_images_give_a_file_that_adapt_takes(tmp_path: Path) -> None:
    path, model, images = tmp_path / "c.json", EMBEDDED / "resnet", EMBEDDED / "test.parquet"
    words = ("--cpu", "--batch-size", "16", "--limit", "64", "--corruptions", "brightness")
    done = spear_hf("calibrate", model, images, *words, "--output", path)
    assert done.exit_code == 0, done.stderr
    assert "preprocessing looks right" in done.stdout
    chosen = json.loads(path.read_text())
    words = ("--cpu", "--corruptions", "fog", "--limit", "32", "--batch-size", "16", "--config", path)
    adapted = printed("adapt", model, images, *words, *SHORT, "--output", tmp_path / "run")
    assert adapted["provenance"]["config"] == chosen["config"] | {"tau": 0.01}
    assert adapted["provenance"]["policy"] == chosen["guard"]


@pytest.mark.slow
def test_compare_takes_a_file_for_spear(tmp_path: Path, file: Path) -> None:
    words = ("--cpu", "--corruptions", "fog", "--limit", "16", "--batch-size", "8", "--methods", "source,spear")
    model, images = EMBEDDED / "resnet", EMBEDDED / "test.parquet"
    compared = printed("compare", model, images, *words, "--config", file, "--output", tmp_path / "run")
    cells = {cell["label"]: cell["report"]["provenance"] for cell in compared["cells"]}
    assert (cells["spear"]["settings"]["alpha"], cells["spear"]["settings"]["tau"]) == (0.75, 0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("always:preprocessing looks wrong")
def test_the_wrong_mean_and_std_are_warned_of(tmp_path: Path) -> None:
    words = ("--cpu", "--batch-size", "32", "--limit", "64", "--corruptions", "brightness", "--output")
    wrong = ("--mean", "0.5", "--std", "0.5", "--image-size", "28")
    done = spear_hf("calibrate", EMBEDDED / "resnet", EMBEDDED / "test.parquet", *words, tmp_path / "c.json", *wrong)
    assert "warning: preprocessing looks wrong" in done.stderr
    assert "the model's own" in done.stderr
