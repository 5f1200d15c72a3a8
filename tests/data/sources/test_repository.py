"""Repositories of parquet files, in every layout."""

from pathlib import Path

import numpy as np
import pytest

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import picture_rows, pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A configuration for each corruption, a split for each severity, as on the Hub."""
    lines = ["---", "configs:"]
    for key, name in enumerate(("fog", "snow")):
        lines += [f"- config_name: {name}", "  data_files:"]
        for severity in (1, 5):
            file = tmp_path / "repo" / "data" / name / f"severity_{severity}" / "0.parquet"
            file.parent.mkdir(parents=True)
            picture_rows(seed=10 * key + severity).to_parquet(file)
            lines += [f"  - split: severity_{severity}", f"    path: data/{name}/severity_{severity}/*.parquet"]
    (tmp_path / "repo" / "README.md").write_text("\n".join([*lines, "---"]))
    return tmp_path / "repo"


def test_configurations_are_corruptions_and_splits_severities(repository: Path) -> None:
    stream = load_stream(repository, corruptions="snow, fog", severity=1, shuffle=False)
    assert stream.domains == ["snow/1", "fog/1"]
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(12, seed=11))
    assert stream.describe()["source"]["kind"] == "config-split"


def test_a_plain_repository_is_corrupted_on_the_fly(tmp_path: Path) -> None:
    (tmp_path / "repo" / "data").mkdir(parents=True)
    picture_rows().to_parquet(tmp_path / "repo" / "data" / "test-00000-of-00001.parquet")
    stream = load_stream(tmp_path / "repo", corruptions="fog")
    assert stream.describe()["corruption"]["preset"] == "cifar"


def test_a_repository_for_each_domain_is_named_by_a_template(tmp_path: Path) -> None:
    for severity in (1, 2, 3, 4, 5):
        for name in ("gaussian_noise", "fog"):
            folder = tmp_path / f"C-{name}-severity_{severity}" / "data"
            folder.mkdir(parents=True)
            picture_rows(seed=severity).to_parquet(folder / "validation.parquet")
    template = str(tmp_path / "C-{corruption}-severity_{severity}")
    stream = load_stream(template, corruptions="fog", severity=3, shuffle=False, layout="repository")
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(12, seed=3))


def test_an_unknown_layout_is_refused(repository: Path) -> None:
    with pytest.raises(DataError, match="layout='tar' is unknown; pass one of repository, npy, config-split, plain"):
        load_stream(repository, layout="tar")


def test_a_missing_repository_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"'nobody/nothing' gave no dataset .* check the name"):
        load_stream("nobody/nothing")


def test_a_configuration_and_a_split_can_be_named(repository: Path) -> None:
    options = {"corruptions": "clean", "layout": "plain", "shuffle": False}
    stream = load_stream(repository, config="snow", split="severity_5", **options)
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(12, seed=15))
    with pytest.raises(DataError, match="config='auto' does not exist or is ambiguous; pass one of 'fog', 'snow'"):
        load_stream(repository, **options)
