"""spear-hf boundaries, corrupt and report."""

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.builders import printed, spear_hf


def test_boundaries_prints_where_rsps_can_sit() -> None:
    rows = printed("boundaries", "test_resnet")
    assert [(row["module"], row["channels"], row["auto"]) for row in rows][:2] == [
        ("maxpool", 32, True),
        ("layer1.0", 32, True),
    ]


def test_boundaries_without_json_is_a_table() -> None:
    assert "ResNet: 5 boundaries, source " in spear_hf("boundaries", "test_resnet").stdout


def test_corrupt_writes_a_copy_of_some_images(tmp_path: Path, photos: Path) -> None:
    words = ("corrupt", photos, tmp_path / "c", "--corruptions", "fog", "--preset", "cifar", "--limit", "2")
    found = printed(*words, "--severity", "3", "--severity", "5")
    assert found["output"] == str(tmp_path / "c")
    for severity in (3, 5):
        table = parquet.read_table(tmp_path / "c" / "data" / "fog" / f"severity_{severity}" / "data.parquet")
        assert table.num_rows == 2


@pytest.mark.slow
def test_corrupt_writes_a_contact_sheet(tmp_path: Path, photos: Path) -> None:
    assert spear_hf("corrupt", photos, tmp_path / "sheet.png", "--sheet", "--preset", "cifar").exit_code == 0
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_corruption_leaves_nothing_behind(tmp_path: Path, photos: Path) -> None:
    done = spear_hf("corrupt", photos, tmp_path / "c", "--corruptions", "fogg")
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1].startswith("DataError: ")
    assert list(tmp_path.iterdir()) == []


def test_report_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    done = spear_hf("report", tmp_path)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"DataError: {tmp_path} holds no report.json")
