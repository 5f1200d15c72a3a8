from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value

from spear_hf.data.cached import cached
from spear_hf.data.image_stream import ImageStream
from spear_hf.data.processor import load_processor
from spear_hf.errors import DataError
from tests.builders import same_batch, shuffled_stream

PROCESSOR = load_processor(None, mean=(0.5,) * 3, std=(0.5,) * 3, size=16)
OPTIONS: dict[str, Any] = {"corruptions": "fog,contrast", "preset": "cifar", "processor": PROCESSOR}


def photos(sizes: list[int] | None = None, seed: int = 0) -> Dataset:
    """Ten random images, 16 x 16 unless told otherwise, all of class 0, 1, 2, 0, ..."""
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (size, size, 3), np.uint8) for size in sizes or [16] * 10]
    rows = {"image": images, "label": [i % 3 for i in range(len(images))]}
    return Dataset.from_dict(rows, features=Features({"image": Image(), "label": Value("int64")}))


def same(one: ImageStream, other: ImageStream) -> bool:
    return all(same_batch(a, b) for a, b in zip(one, other, strict=True))


def test_a_cached_stream_gives_the_same_bits(tmp_path: Path) -> None:
    stream = shuffled_stream(photos(), batch_size=4, **OPTIONS)
    kept = cached(stream, tmp_path, progress=False)
    assert same(kept, stream)
    assert same(kept.shard(1, 2), stream.shard(1, 2))
    assert kept.describe() == stream.describe()


def test_other_batch_sizes_models_and_protocols_share_the_file(tmp_path: Path) -> None:
    for batch_size, protocol, processor in ((4, "single", PROCESSOR), (3, "continual", None)):
        stream = shuffled_stream(
            photos(), **(OPTIONS | {"batch_size": batch_size, "protocol": protocol, "processor": processor})
        )
        assert same(cached(stream, tmp_path, progress=False), stream)
    assert len(list(tmp_path.glob("*.npy"))) == 1


@pytest.mark.parametrize("changes", [{"seed": 1}, {"severity": 3}, {"limit": 8}, {"corruptions": "fog"}])
def test_other_images_do_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    cached(shuffled_stream(photos(), **OPTIONS), tmp_path, progress=False)
    other = shuffled_stream(photos(), **(OPTIONS | changes))
    assert same(cached(other, tmp_path, progress=False), other)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_another_source_of_the_same_name_and_labels_is_told_apart(tmp_path: Path) -> None:
    first, second = (shuffled_stream(photos(seed=seed), **OPTIONS) for seed in (0, 1))
    cached(first, tmp_path, progress=False)
    assert same(cached(second, tmp_path, progress=False), second)


def test_a_cached_stream_goes_on_from_a_state(tmp_path: Path) -> None:
    stream = shuffled_stream(photos(), batch_size=4, **OPTIONS)
    first = cached(stream, tmp_path, progress=False)
    next(batches := iter(first))
    next(batches)
    second = cached(stream, tmp_path, progress=False)
    second.load_state_dict(first.state_dict())
    assert next(iter(second))["batch"] == 2


def test_what_cannot_be_cached_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cycles=2"):
        cached(shuffled_stream(photos(), cycles=2, **OPTIONS), tmp_path)
    clean = shuffled_stream(
        photos([16] * 9 + [20]), corruptions="clean", batch_size=1, processor=PROCESSOR, shuffle=False
    )
    with pytest.raises(DataError, match=r"do not (fit one array|stack)"):
        cached(clean, tmp_path, progress=False)
    assert not [path for path in tmp_path.iterdir() if "npy" in path.name]
