import csv
import json
from pathlib import Path

import pytest

from spear_hf.errors import CheckpointError, ConfigError
from spear_hf.evaluation.prediction_file import PredictionFile
from spear_hf.evaluation.predictions import Prediction


def batch(number: int, name: str = "a.jpg") -> list[Prediction]:
    return [
        Prediction(name, 1, "dog, big", 0.75, ((1, 0.75), (0, 0.25)), 0.8, 0, "cat", 0.6, True, None, "cam", number)
    ]


def files(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines()) if path.suffix == ".csv" else map(json.loads, text.splitlines())
    return [f"{row['batch']} {row['file']}" for row in rows]


def test_a_csv_has_a_head_and_a_row_for_each_image(tmp_path: Path) -> None:
    file = PredictionFile(tmp_path / "run" / "answers.csv")
    file.append(batch(0))
    (row,) = csv.DictReader(file.finish().read_text().splitlines())
    assert (row["class"], row["class_name"], row["top5"]) == ("1", "dog, big", "1:0.75 0:0.25")
    assert (row["source_class"], row["learned"], row["label"]) == ("0", "true", "")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_after_a_kill_whole_rows_stay_and_answered_again_ones_go(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"answers{suffix}"
    first = PredictionFile(path)
    for number in range(3):
        first.append(batch(number, f"{number}.jpg"))
    path.write_text(path.read_text() + '"half a row')
    again = PredictionFile(path)
    again.append(batch(2, "2 again.jpg"))
    assert files(again.finish()) == ["0 0.jpg", "1 1.jpg", "2 2 again.jpg"]


def test_parquet_is_written_at_the_end_with_types(tmp_path: Path) -> None:
    from pyarrow import parquet

    file = PredictionFile(tmp_path / "answers.parquet")
    file.append(batch(0))
    assert not file.path.exists()
    (row,) = parquet.read_table(file.finish()).to_pylist()
    assert (row["top5"][1], row["learned"], row["label"]) == ({"class": 0, "probability": 0.25}, True, None)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]


def test_a_resumed_run_without_its_earlier_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="all 5 batches before"):
        PredictionFile(tmp_path / "answers.csv").append(batch(5))


def test_another_ending_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.csv, \.jsonl, \.parquet"):
        PredictionFile(tmp_path / "answers.txt")
    (tmp_path / "answers.csv").mkdir()
    with pytest.raises(ConfigError, match="in the way of a folder"):
        PredictionFile(tmp_path / "answers.csv")


def test_numbers_that_are_not_finite_and_odd_names_stay_readable(tmp_path: Path) -> None:
    nan = float("nan")
    odd = Prediction('a,"b"\udce9.jpg', 0, None, nan, ((0, nan),), nan)
    for suffix in (".csv", ".jsonl", ".parquet"):
        file = PredictionFile(tmp_path / f"answers{suffix}")
        file.append([odd])
        assert file.finish().stat().st_size > 0
    assert json.loads((tmp_path / "answers.jsonl").read_text())["entropy"] is None
