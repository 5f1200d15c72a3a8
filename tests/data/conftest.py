"""Fixtures that several tests of the room share."""

from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from tests.builders import write_pictures


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two class folders, five images each."""
    for name in ("ant", "bee"):
        write_pictures(tmp_path / "pets" / name, 5)
    return tmp_path / "pets"


@pytest.fixture
def rows() -> Dataset:
    """Four images with a number in a column that has no usual label name."""
    images = [Image.new("RGB", (32, 32), color) for color in ("red", "green", "blue", "white")]
    return Dataset.from_dict({"image": images, "kind": [0, 1, 2, 3]})
