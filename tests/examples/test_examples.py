"""Every example on the embedded model, without a network."""

import gzip
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spear_hf import METHODS, SpearModel, load_base_model, load_stream
from spear_hf.boundaries import find
from tests.conftest import EMBEDDED, OFFLINE
from tests.examples.conftest import EXAMPLES
from tests.hub_server import LoopbackHub

Example = Callable[..., Any]
PROGRAMS = [path.stem for path in sorted(EXAMPLES.glob("*.py")) if "script(main" in path.read_text()]
PROGRAMS.remove("serve_ray")  # needs Ray to be imported; test_serve_ray.py runs it


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_shows_the_commands_of_the_docstring(example: Example, name: str) -> None:
    text = example(name, "--help").stdout
    assert f"python examples/{name}.py" in text or f"accelerate launch examples/{name}.py" in text
    assert "_" not in "".join(word for word in text.split() if word.startswith("--"))


@pytest.mark.slow
def test_accelerate_launches_an_example(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", str(EXAMPLES / "adapt.py")]
    words = ["--cpu", "--limit", "8", "--batch-size", "8", "--corruptions", "fog", "--output", str(tmp_path)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.json").is_file()


# --- adapt ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_model_gets_better_on_corrupted_images(example: Example, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = example(
        "adapt", "--cpu", "--limit", "64", "--batch-size", "32", "--corruptions", "fog,contrast", "--output", run
    )
    assert done.exit_code == 0, done.stderr
    report = json.loads((run / "report.json").read_text())
    assert [(row["domain"], row["n"]) for row in report["rows"]] == [("fog/5", 64), ("contrast/5", 64)]
    assert report["mean_error"]["SPeaR"] < report["mean_error"]["source"] - 10
    assert "its logits are identical" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_run_that_remembers_its_stream_says_so_and_saves_what_it_learned(example: Example, tmp_path: Path) -> None:
    memory = ["--memory-images", "64", "--domain-jump", "4"]
    words = ["--limit", "128", "--batch-size", "16", "--corruptions", "brightness,contrast", "--protocol", "continual"]
    done = example("adapt", "--cpu", *words, *memory, "--output", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "began a new domain" in said
    assert "its logits are identical" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--boundaries", "0,7"], "BoundaryNotFoundError: --boundaries (0, 7) names depth 7"),
        (["--model", "resnett"], "ModelNotFoundError: 'resnett' is no folder"),
        (["--model", "./nowhere"], "ModelNotFoundError: nowhere is no folder"),
        (["--dataset", "./nowhere"], "DataError: "),
        (["--corruptions", "fogg"], "DataError: "),
        (["--severity", "6"], "DataError: "),
        (["--limit", "20000"], "DataError: --limit 20000"),
        (["--tau", "2"], "ConfigError: --tau 2.0 is not allowed"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    example: Example, tmp_path: Path, words: list[str], message: str
) -> None:
    done = example("adapt", "--cpu", "--output", tmp_path / "run", *words)
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1].startswith(message)
    assert not (tmp_path / "run").exists()


# --- compare_methods --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_method_is_compared_and_a_second_run_computes_nothing(example: Example, tmp_path: Path) -> None:
    words = ("--cpu", "--output", tmp_path, "--cache", tmp_path / "cache", "--source-images", "16", "--limit", "16")
    words += ("--corruptions", "fog,contrast", "--published", "cifar10")
    first = example("compare_methods", *words)
    assert first.exit_code == 0, first.stderr
    cells = json.loads((tmp_path / "comparison.json").read_text())["cells"]
    assert [cell["label"] for cell in cells] == [*METHODS]
    assert all(row["n"] == 16 for cell in cells for row in cell["report"]["rows"])
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert example("compare_methods", *words).stdout == first.stdout  # the seconds too


def test_an_unknown_method_is_one_clear_line(example: Example, tmp_path: Path) -> None:
    done = example("compare_methods", "--methods", "tents", "--output", tmp_path)
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1].startswith("ConfigError: method='tents' is not known")


# --- share ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_adapter_is_learned_measured_and_pushed(example: Example, hub: LoopbackHub, tmp_path: Path) -> None:
    words = ("--model", EMBEDDED / "resnet", "--learn-images", "128", "--test-images", "64")
    done = example("share", *words, "--output", tmp_path / "fog", "--push", "me/resnet-fog", "--private")
    assert done.exit_code == 0, done.stderr
    assert hub.repos["me/resnet-fog"].private
    card = hub.head("me/resnet-fog")["README.md"].decode()
    assert "| fog/5 | 128 |" in card
    assert "| clean | 64 |" in card
    base, x = load_base_model(str(EMBEDDED / "resnet")), torch.randn(4, 3, 64, 64)
    pushed = SpearModel.from_pretrained(base, "me/resnet-fog")
    answer = pushed(x).logits
    kept = SpearModel.from_pretrained(pushed.unload(), tmp_path / "fog")
    assert torch.equal(kept(x).logits, answer)


@pytest.mark.slow
def test_several_corruptions_make_no_single_adapter(example: Example, tmp_path: Path) -> None:
    words = ("--model", EMBEDDED / "resnet", "--learn-images", "64", "--corruptions", "fog,snow")
    done = example("share", *words, "--output", tmp_path / "both")
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1].startswith("SpearError: 2 corruptions")
    assert not (tmp_path / "both").exists()


# --- train_source, new_architecture -----------------------------------------------------------------------------------


def test_training_wants_a_model_or_an_export(example: Example, tmp_path: Path) -> None:
    done = example("train_source", "--data", tmp_path, "--output", tmp_path / "x")
    assert done.exit_code == 2
    assert "give one of --arch and --export" in done.stderr


@pytest.mark.slow
def test_training_writes_a_model_and_images(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stem, count in (("train", 96), ("t10k", 16)):
        images = torch.randint(256, (count, 28, 28), dtype=torch.uint8).numpy()
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
        (tmp_path / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        labels = bytes(i % 10 for i in range(count))
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels))
    monkeypatch.setattr(importlib.import_module("train_source"), "HELD_OUT", 32)
    data = ("--data", tmp_path)
    done = example("train_source", "--export", "held_out", *data, "--output", tmp_path / "held_out.parquet")
    assert done.exit_code == 0, done.stderr
    assert (
        len(next(iter(load_stream(str(tmp_path / "held_out.parquet"), batch_size=32, preset="cifar")))["labels"]) == 32
    )
    words = ("--arch", "vit", "--epochs", "1", "--batch-size", "32")
    done = example("train_source", *words, *data, "--output", tmp_path / "vit")
    assert done.exit_code == 0, done.stderr
    assert json.loads((tmp_path / "vit" / "training.json").read_text())["epochs"] == [1]
    assert load_base_model(str(tmp_path / "vit")).config.id2label[1] == "Trouser"


@pytest.mark.slow
def test_a_rule_teaches_a_new_architecture(
    examples_path: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find, "RULES", dict(find.RULES))
    importlib.import_module("new_architecture")
    said = capsys.readouterr().out
    assert "Without a rule: " in said
    assert "1 rounds   norm     48 on axis -1" in said
    assert "Predicted 16 images" in said
