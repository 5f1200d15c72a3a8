"""Each protocol is a pure function from a position to an image and its domain."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image

from spear_hf.data.image_stream import ImageStream
from spear_hf.data.protocols import correlated_order
from spear_hf.errors import DataError
from tests.builders import shuffled_stream

N = 30


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """30 images of five classes, sorted by class."""
    pixels = np.random.default_rng(0).integers(0, 256, (N, 32, 32, 3), dtype=np.uint8)
    return Dataset.from_dict({"image": [Image.fromarray(x) for x in pixels], "label": sorted(i % 5 for i in range(N))})


def seen(stream: ImageStream) -> list[tuple[int, str]]:
    """(sample id, domain) in the order of the stream."""
    return [
        (int(i), stream.domains[int(d)])
        for batch in stream
        for i, d in zip(batch["index"], batch["domain_index"], strict=True)
    ]


def test_gradual_climbs_and_falls(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast, brightness", protocol="gradual", batch_size=N)
    levels = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    expected = [f"{name}/{level}" for name in ("contrast", "brightness") for level in levels]
    assert [batch["domain"] for batch in stream] == expected
    assert len(stream.domains) == 10


def test_gradual_stops_at_the_severity_asked_for(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast", severity=2, protocol="gradual", batch_size=N)
    assert [batch["domain"] for batch in stream] == ["contrast/1", "contrast/2", "contrast/1"]
    with pytest.raises(DataError, match="climbs whole severities of one corruption; clean has none"):
        shuffled_stream(dataset, corruptions="clean", protocol="gradual")


def test_mixed_shows_every_pair_of_image_and_domain_once(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast, brightness, clean", protocol="mixed", batch_size=8)
    pairs = seen(stream)
    assert len(set(pairs)) == len(pairs) == 3 * N
    assert {batch["domain"] for batch in stream} == {"mixed"}
    assert all(len(set(batch["domain_index"].tolist())) > 1 for batch in stream)


def test_an_image_in_a_mixed_batch_is_the_same_as_in_its_domain(dataset: Dataset) -> None:
    alone = shuffled_stream(dataset, corruptions="gaussian_noise", batch_size=N).batch(0)
    mixed = shuffled_stream(dataset, corruptions="contrast, gaussian_noise", protocol="mixed", batch_size=2 * N).batch(
        0
    )
    noisy = mixed["domain_index"] == 1
    order, other = alone["index"].argsort(), mixed["index"][noisy].argsort()
    assert torch.equal(alone["pixel_values"][order], mixed["pixel_values"][noisy][other])
    assert torch.equal(alone["labels"][order], mixed["labels"][noisy][other])  # pyright: ignore[reportOptionalSubscript]


def test_correlated_shows_every_image_once_in_each_domain_in_another_order(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast, brightness", protocol="correlated", batch_size=7)
    ids = [i for i, _ in seen(stream)]
    assert sorted(ids[:N]) == sorted(ids[N:]) == list(range(N))
    assert ids[:N] != ids[N:]


@pytest.mark.parametrize(("delta", "least", "most"), [(0.01, 5, 12), (100.0, 20, 26)])
def test_delta_sets_how_many_runs_of_a_class_there_are(delta: float, least: int, most: int) -> None:
    """Five classes in five slots: a run for each class where delta is small, a run for each class and slot if large."""
    labels = np.repeat(np.arange(5), 100)
    order = correlated_order(labels, delta, np.random.default_rng(0))
    assert sorted(order) == list(range(500))
    assert least <= (np.diff(labels[order]) != 0).sum() + 1 <= most


def test_correlated_needs_labels_and_a_positive_delta(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="orders images by class, and this source has no labels"):
        shuffled_stream(dataset, protocol="correlated", label_column=None)
    with pytest.raises(DataError, match="delta=0 is not a positive number"):
        shuffled_stream(dataset, protocol="correlated", delta=0)


def test_a_schedule_of_ones_own_runs_on_through_the_images(dataset: Dataset) -> None:
    schedule = [("contrast/1", 20), ("contrast/2.5+brightness/1", 25), ("clean", 5)]
    stream = shuffled_stream(dataset, schedule=schedule, batch_size=10)
    pairs = seen(stream)
    assert Counter(domain for _, domain in pairs) == {"contrast/1": 20, "contrast/2.5+brightness/1": 25, "clean": 5}
    assert sorted(i for i, _ in pairs[:N]) == list(range(N))
    assert len({i for i, _ in pairs[N:]}) == 20
    assert [len(batch["index"]) for batch in stream] == [10, 10, 10, 10, 5, 5]


def test_a_schedule_without_images_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"schedule holds \('fog/5', 0\); each entry is a domain and a number"):
        shuffled_stream(dataset, schedule=[("fog", 0)])
    with pytest.raises(DataError, match="schedule is empty"):
        shuffled_stream(dataset, schedule=[])
    with pytest.raises(DataError, match="'fogg' is not one of the 19 known"):
        shuffled_stream(dataset, schedule=[("fogg", 5)])


PROTOCOLS: list[dict[str, Any]] = [
    {"protocol": "single"},
    {"protocol": "gradual", "severity": 2},
    {"protocol": "mixed"},
    {"protocol": "correlated"},
    {"schedule": [("contrast", 17), ("brightness", 30)]},
    {"protocol": "continual", "cycles": 2},
]


@pytest.mark.parametrize("options", PROTOCOLS, ids=lambda options: options.get("protocol", "schedule"))
def test_every_protocol_repeats_itself_to_the_bit(dataset: Dataset, options: dict[str, Any]) -> None:
    first, again = (shuffled_stream(dataset, corruptions="contrast, brightness", **options) for _ in range(2))
    other = shuffled_stream(dataset, corruptions="contrast, brightness", seed=1, **options)
    assert first.spec_hash == again.spec_hash != other.spec_hash
    assert seen(first) == [pair for g in range(len(again)) for pair in seen_in(again, g)]
    assert seen(first) != seen(other)


def seen_in(stream: ImageStream, number: int) -> list[tuple[int, str]]:
    batch = stream.batch(number)
    return [(int(i), stream.domains[int(d)]) for i, d in zip(batch["index"], batch["domain_index"], strict=True)]


@pytest.mark.parametrize("world", [1, 3, 8, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", PROTOCOLS, ids=lambda options: options.get("protocol", "schedule"))
def test_the_slices_of_all_processes_are_the_batches(dataset: Dataset, options: dict[str, Any], world: int) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast, brightness", batch_size=4, limit=10, **options)
    for whole, *parts in zip(stream, *(stream.shard(rank, world) for rank in range(world)), strict=True):
        for key in ("pixel_values", "labels", "index", "domain_index"):
            assert torch.cat([part[key] for part in parts]).equal(whole[key])
        assert {(part["domain"], part["batch"], part["is_domain_start"]) for part in parts} == {
            (whole["domain"], whole["batch"], whole["is_domain_start"])
        }


def test_slices_may_be_empty_and_keep_their_shape(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast", batch_size=29)
    last = [stream.shard(rank, 3).batch(1) for rank in range(3)]
    assert [len(part["index"]) for part in last] == [0, 0, 1]
    assert [tuple(part["pixel_values"].shape) for part in last] == [(0, 32, 32, 3), (0, 32, 32, 3), (1, 32, 32, 3)]
    assert [part["labels"].shape for part in last] == [(0,), (0,), (1,)]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_state_goes_on_with_another_number_of_processes(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="contrast", batch_size=7)
    iterator = iter(stream.shard(0, 2))
    next(iterator)
    part = stream.shard(1, 3)
    part.load_state_dict({"next_batch": 1, "spec": stream.spec_hash})
    assert next(iter(part))["index"].equal(stream.shard(1, 3).batch(1)["index"])


def test_a_rank_outside_the_world_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="rank=2 and world=2; ranks count from 0 to world - 1"):
        shuffled_stream(dataset).shard(2, 2)
