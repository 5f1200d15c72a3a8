import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spear_hf import load_stream
from spear_hf.data.image_stream import ImageStream
from spear_hf.errors import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


def opened(folder: Path) -> ImageStream:
    return load_stream(folder, corruptions="clean")


def test_images_replaced_in_place_are_another_stream_even_at_the_same_time_and_size(photos: Path) -> None:
    state, path = opened(photos).state_dict(), photos / "1.png"
    times, size = (path.stat().st_atime_ns, path.stat().st_mtime_ns), path.stat().st_size
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(path)
    assert path.stat().st_size == size
    os.utime(path, ns=times)
    with pytest.raises(DataError, match="of another stream"):
        opened(photos).load_state_dict(state)


def test_two_folders_of_one_name_are_told_apart_and_a_copy_is_the_same(photos: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(photos, tmp_path / "b" / "photos"))
    assert opened(copied).spec_hash == opened(photos).spec_hash
    (copied / "0.png").rename(copied / "3.png")
    assert opened(copied).spec_hash != opened(photos).spec_hash
