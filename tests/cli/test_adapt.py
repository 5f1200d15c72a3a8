"""The everyday job: a folder of images in, answers out; nothing is corrupted, and labels are optional."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from spear_hf import load_base_model, load_processor
from spear_hf.evaluation.run_folder import RunFolder
from tests.builders import printed, spear_hf
from tests.conftest import EMBEDDED, OFFLINE

WORDS = ("--cpu", "--no-page", "--batch-size", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten embedded images as loose files, whose names are not in the order of the rows."""
    from datasets import Dataset

    folder = tmp_path_factory.mktemp("job") / "cam one"
    folder.mkdir()
    rows = Dataset.from_parquet(str(EMBEDDED / "test.parquet")).select(range(10))
    for i, row in enumerate(rows):
        row["image"].save(folder / f"{(7 * i) % 10}.png")  # pyright: ignore[reportArgumentType]
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_a_folder_without_labels_is_answered_in_the_order_of_its_names(tmp_path: Path, folder: Path) -> None:
    done = spear_hf("adapt", EMBEDDED / "resnet", folder, *WORDS, "--output", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    rows = rows_of(tmp_path / "run" / "predictions.csv")
    model = load_base_model(str(EMBEDDED / "resnet"))
    with torch.no_grad():
        images = [Image.open(folder / f"{i}.png").convert("RGB") for i in range(10)]
        expected = model(load_processor(model)(images)).logits.softmax(1)
    assert [row["file"] for row in rows] == [f"{i}.png" for i in range(10)]
    assert [int(row["source_class"]) for row in rows] == expected.argmax(1).tolist()
    assert [float(row["source_probability"]) for row in rows] == pytest.approx(expected.amax(1).tolist(), abs=1e-4)
    assert rows[0]["source_class_name"] == model.config.id2label[int(rows[0]["source_class"])]
    assert {row["domain"] for row in rows} == {"cam-one"}
    assert "no labels, so no errors" in " ".join(done.stdout.split())
    assert (tmp_path / "run" / "adapters" / "cam-one" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_saved_adapter_answers_frozen(tmp_path: Path, folder: Path) -> None:
    adapter = EMBEDDED.parents[1] / "hub_cards" / "resnet-fog"
    words = ("--adapter", adapter, "--predictions", tmp_path / "answers.jsonl", "--output", tmp_path / "run")
    found = printed("eval", EMBEDDED / "resnet", folder, *WORDS, *words)
    rows = [json.loads(line) for line in Path(found["predictions"]).read_text().splitlines()]
    assert (len(rows), {row["learned"] for row in rows}) == (10, {False})
    assert [row["probability"] for row in rows] != [row["source_probability"] for row in rows]


@pytest.mark.slow
def test_labels_give_errors_over_all_classes_unless_restricted(tmp_path: Path, folder: Path) -> None:
    bags = tmp_path / "today" / "Bag"
    bags.mkdir(parents=True)
    for file in folder.iterdir():
        (bags / file.name).write_bytes(file.read_bytes())
    words = ("eval", EMBEDDED / "resnet", tmp_path / "today", *WORDS)
    assert printed(*words, "--output", tmp_path / "all")["mean_error"]["source"] > 0
    done = spear_hf(*words, "--output", tmp_path / "one", "--restrict-classes")
    assert RunFolder(tmp_path / "one").read_report().mean_error("source") == 0
    assert "answers and errors over the 1 classes of these images" in done.stdout


def test_a_model_of_ones_own_needs_its_preprocessing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(),\n"
        "    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    words: tuple[Any, ...] = ("eval", "my_nets:make", folder, *WORDS, "--output", tmp_path / "run")
    assert "pass --mean, --std and --image-size" in spear_hf(*words).stderr
    (tmp_path / "names.txt").write_text("cat\ndog\nbird\n")
    given = ("--mean", "0.5", "--std", "0.5,0.5,0.5", "--image-size", "32", "--class-names", "names.txt")
    assert spear_hf(*words, *given).exit_code == 0
    assert {row["class_name"] for row in rows_of(tmp_path / "run" / "predictions.csv")} <= {"cat", "dog", "bird"}


@pytest.mark.slow
def test_a_killed_run_loses_no_answer_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    words = ["adapt", str(EMBEDDED / "resnet"), str(EMBEDDED / "test.parquet"), "--cpu", "--no-page", "--limit", "256"]
    words += ["--batch-size", "8", "--save-every", "4"]
    assert spear_hf(*words, "--output", tmp_path / "whole").exit_code == 0
    command = [sys.executable, "-m", "spear_hf", *words, "--output", str(tmp_path / "cut")]
    cut = subprocess.Popen(command, env=OFFLINE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (tmp_path / "cut" / "checkpoint" / "step-00000012").is_dir():
        assert cut.poll() is None
        time.sleep(0.02)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    whole = (tmp_path / "whole" / "predictions.csv").read_text()
    kept = (tmp_path / "cut" / "predictions.csv").read_text()
    assert kept.count("\n") > 12 * 8
    assert whole.startswith(kept[: kept.rfind("\n")])
    assert spear_hf(*words, "--output", tmp_path / "cut").exit_code == 0
    assert (tmp_path / "cut" / "predictions.csv").read_text() == whole


@pytest.mark.slow
def test_a_run_is_its_images_and_settings_and_fresh_leaves_nothing_of_the_old_one(tmp_path: Path, folder: Path) -> None:
    photos = Path(shutil.copytree(folder, tmp_path / "photos"))
    words = ("adapt", EMBEDDED / "resnet", photos, *WORDS, "--output", tmp_path / "run")
    assert spear_hf(*words).exit_code == 0
    first = rows_of(tmp_path / "run" / "predictions.csv")
    again = spear_hf(*words)
    assert "holds this run already; shown again, --fresh runs it anew" in again.stderr
    assert json.loads((tmp_path / "run" / "report.json").read_text())["provenance"]["shown_again"] is True
    assert rows_of(tmp_path / "run" / "predictions.csv") == first
    shutil.copyfile(photos / "1.png", photos / "0.png")  # replaced in place
    for changed in ((), ("--tau", "0.1")):
        refused = spear_hf(*words, *changed)
        assert refused.exit_code == 2
        assert refused.stderr.strip().endswith("or start again with --fresh")
    (tmp_path / "run" / "adapters" / "photos").rename(tmp_path / "run" / "adapters" / "stale")
    assert spear_hf(*words, "--fresh").exit_code == 0
    assert [path.name for path in (tmp_path / "run" / "adapters").iterdir()] == ["photos"]
    assert rows_of(tmp_path / "run" / "predictions.csv")[0] != first[0]
