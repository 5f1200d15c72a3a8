"""Batch g of a stream is a pure function of g, whoever asks and how often."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as PILImage

from spear_hf.data.corruptions import corrupt, sample_rng
from spear_hf.data.image_stream import ImageStream
from spear_hf.data.processor import load_processor
from spear_hf.errors import DataError
from tests.builders import pictures, same_batch, shuffled_stream

N, CLASSES = 23, ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """23 random 32 x 32 images of three classes, sorted by class."""
    features = Features({"image": Image(), "label": ClassLabel(names=CLASSES)})
    labels = sorted(i % 3 for i in range(N))
    images = [PILImage.fromarray(image) for image in pictures(N)]
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def test_every_domain_shows_every_image_in_the_same_order(dataset: Dataset) -> None:
    batches = list(shuffled_stream(dataset, corruptions="fog, contrast", batch_size=8))
    index = torch.cat([batch["index"] for batch in batches])
    assert sorted(index[:N].tolist()) == list(range(N))
    assert torch.equal(index[:N], index[N:])
    assert index[:N].tolist() != list(range(N))


def test_batches_do_not_straddle_domains(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="fog, contrast", severity=3, batch_size=8)
    batches = list(stream)
    assert len(batches) == len(stream) == 6
    assert [batch["domain"] for batch in batches] == ["fog/3"] * 3 + ["contrast/3"] * 3
    assert [len(batch["index"]) for batch in batches] == [8, 8, 7] * 2
    assert [batch["is_domain_start"] for batch in batches] == [True, False, False] * 2
    assert [batch["position"] for batch in batches] == [0, 8, 16, 23, 31, 39]
    assert [batch["batch"] for batch in batches] == list(range(6))


def test_all_is_exactly_the_fifteen_in_paper_order(dataset: Dataset) -> None:
    domains = shuffled_stream(dataset).domains
    assert len(domains) == 15
    assert domains[:3] == ["gaussian_noise/5", "shot_noise/5", "impulse_noise/5"]
    assert domains[-1] == "jpeg_compression/5"


def test_pixels_are_those_of_the_corruption_under_the_samples_own_id(dataset: Dataset) -> None:
    batch = shuffled_stream(dataset, corruptions="shot_noise", severity=2, seed=7).batch(0)
    sample = int(batch["index"][4])
    expected = corrupt(pictures(N)[sample], "shot_noise", 2, sample_rng(7, "cifar", "shot_noise", 2, sample))
    assert np.array_equal(batch["pixel_values"][4].numpy(), expected)


@pytest.mark.filterwarnings("ignore:dataset is sorted")
def test_an_image_is_the_same_in_any_batch_size_limit_and_protocol(dataset: Dataset) -> None:
    def images(**options: Any) -> dict[int, torch.Tensor]:
        stream = shuffled_stream(dataset, corruptions="gaussian_noise", **options)
        return {int(i): x for batch in stream for i, x in zip(batch["index"], batch["pixel_values"], strict=True)}

    reference = images()
    for other in (images(batch_size=1), images(limit=5), images(protocol="continual"), images(shuffle=False)):
        assert all(torch.equal(reference[i], x) for i, x in other.items())


def test_labels_follow_their_images(dataset: Dataset) -> None:
    for batch in shuffled_stream(dataset, corruptions="clean", batch_size=5):
        assert batch["labels"] is not None
        assert batch["labels"].dtype == torch.int64
        assert batch["labels"].tolist() == [dataset[int(i)]["label"] for i in batch["index"]]


def test_clean_images_are_untouched(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="none", shuffle=True)
    assert stream.domains == ["clean"]
    batch = stream.batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(N)[batch["index"].numpy()])


def test_a_composition_applies_its_corruptions_in_order(dataset: Dataset) -> None:
    batch = shuffled_stream(dataset, corruptions="fog/2+contrast/1.5", batch_size=1).batch(0)
    sample = int(batch["index"][0])
    foggy = corrupt(pictures(N)[sample], "fog", 2, sample_rng(0, "cifar", "fog", 2, sample))
    expected = corrupt(foggy, "contrast", 1.5, sample_rng(0, "cifar", "contrast", 1.5, sample))
    assert batch["domain"] == "fog/2+contrast/1.5"
    assert np.array_equal(batch["pixel_values"][0].numpy(), expected)


def test_several_severities_vary_fastest(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions=["fog", "clean", "snow"], severity=[1, 3])
    assert stream.domains == ["fog/1", "fog/3", "clean", "snow/1", "snow/3"]


def test_the_processor_makes_pixel_values(dataset: Dataset) -> None:
    processor = load_processor(None, mean=[0.5] * 3, std=[0.2] * 3, size=40)
    raw, made = (shuffled_stream(dataset, corruptions="fog", processor=p).batch(0) for p in (None, processor))
    assert raw["pixel_values"].dtype == torch.uint8
    assert torch.equal(made["pixel_values"], processor(raw["pixel_values"]))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_change_nothing(dataset: Dataset, workers: int) -> None:
    options: dict[str, Any] = {"corruptions": "noise, elastic_transform", "batch_size": 4}
    torch.manual_seed(0)
    several = list(shuffled_stream(dataset, num_workers=workers, **options))
    after = torch.rand(1)
    assert all(map(same_batch, several, shuffled_stream(dataset, **options)))
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))  # a DataLoader would have drawn its seed from the global generator


def test_batch_g_needs_no_batch_before_it(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="noise", batch_size=4)
    for number, batch in enumerate(shuffled_stream(dataset, corruptions="noise", batch_size=4)):
        if number % 4 == 3:
            assert same_batch(stream.batch(number), batch)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_stream_yields_the_remaining_batches(dataset: Dataset, workers: int) -> None:
    def fresh(num_workers: int = 0) -> ImageStream:
        return shuffled_stream(dataset, corruptions="noise", batch_size=4, num_workers=num_workers)

    broken_off, resumed = fresh(workers), fresh(workers)
    for _ in itertools.islice(broken_off, 5):
        pass
    resumed.load_state_dict(broken_off.state_dict())
    rest = list(resumed)
    assert rest[0]["batch"] == 5
    assert all(map(same_batch, rest, list(fresh())[5:]))
    resumed.num_workers = 0
    assert len(list(resumed)) == len(resumed)  # the state is used once


def test_the_state_is_an_integer_the_skipped_ids_and_a_hash(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="fog")
    assert stream.state_dict() == {"next_batch": 0, "skipped": [], "spec": stream.spec_hash}


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"severity": 4}, {"batch_size": 8}, {"limit": 20}, {"jpeg_quality": 90}, {"cycles": 2}]
)
def test_a_state_of_another_stream_is_refused(dataset: Dataset, other: dict[str, Any]) -> None:
    state = shuffled_stream(dataset, corruptions="fog").state_dict()
    with pytest.raises(DataError, match="state is of another stream"):
        shuffled_stream(dataset, corruptions="fog", **other).load_state_dict(state)


def test_a_moved_model_folder_is_still_the_same_stream(dataset: Dataset) -> None:
    hashes = []
    for origin in ("here", "there"):
        processor = load_processor(None, mean=[0.5] * 3, std=[0.2] * 3, size=32)
        processor.origin = origin
        hashes.append(shuffled_stream(dataset, corruptions="fog", processor=processor).spec_hash)
    assert hashes[0] == hashes[1]


def test_a_limit_is_a_seeded_sample_of_every_class(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="fog", limit=12)
    batch = stream.batch(0)
    assert len(batch["index"]) == 12
    assert set(batch["labels"].tolist()) == {0, 1, 2}  # pyright: ignore[reportOptionalMemberAccess]
    assert shuffled_stream(dataset, corruptions="fog", limit=12).batch(0)["index"].equal(batch["index"])


def test_an_endless_stream_reorders_the_same_images_each_cycle(dataset: Dataset) -> None:
    stream = shuffled_stream(dataset, corruptions="fog", batch_size=N, limit=20, cycles=None)
    first, second = (batch["index"].tolist() for batch in itertools.islice(stream, 2))
    assert sorted(first) == sorted(second)
    assert first != second
    assert stream.batch(1_000_000)["position"] == 20_000_000
    with pytest.raises(TypeError, match="endless stream has no length"):
        len(stream)


def test_describe_names_all_that_a_rerun_needs(dataset: Dataset) -> None:
    said = shuffled_stream(dataset, corruptions="frost, fog", severity=3, limit=20, seed=5).describe()
    assert said["source"]["count"] == N
    assert said["source"]["label_column"] == "label"
    assert said["images_per_cycle"] == 40
    assert said["corruption"]["preset"] == "cifar"
    assert said["corruption"]["seed"] == 5
    assert said["corruption"]["frost"].startswith("frost(")
    assert said["corruption"]["jpeg_quality"] is None
    assert {"order_hash", "label_hash", "protocol", "domains", "batch_size"} <= said.keys()


def test_photographs_are_cropped_and_recompressed_as_imagenet_c_was() -> None:
    image = pictures(1, 300)[0, :280]
    stream = shuffled_stream(Dataset.from_dict({"image": [PILImage.fromarray(image)]}), corruptions="clean, contrast")
    assert {tuple(batch["pixel_values"].shape) for batch in stream} == {(1, 224, 224, 3)}
    assert stream.describe()["corruption"]["jpeg_quality"] == 85
    assert stream.describe()["corruption"]["crop"] == "short side 256, centre 224"


def test_the_crop_is_torchvisions() -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    image = PILImage.fromarray(pictures(1, 347)[0, :261])
    stream = shuffled_stream(Dataset.from_dict({"image": [image]}), corruptions="clean, fog", jpeg_quality=None)
    expected = np.asarray(Compose([Resize(256), CenterCrop(224)])(image))
    assert np.array_equal(stream.batch(0)["pixel_values"][0].numpy(), expected)


def test_a_clean_stream_leaves_photographs_to_the_processor() -> None:
    images = [PILImage.fromarray(pictures(1, side)[0]) for side in (300, 260)]
    processor = load_processor(None, mean=[0.5] * 3, std=[0.2] * 3, size=32)
    batch = shuffled_stream(Dataset.from_dict({"image": images}), corruptions="clean", processor=processor).batch(0)
    expected = processor([images[int(i)] for i in batch["index"]])
    assert torch.equal(batch["pixel_values"], expected)


def test_every_image_keeps_its_name_in_any_order(folder: Path) -> None:
    stream = shuffled_stream(folder, corruptions="clean", batch_size=4)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert all(batch["names"] == [files[i] for i in batch["index"]] for batch in stream)


def test_rows_without_paths_are_named_by_their_number(rows: Dataset) -> None:
    assert shuffled_stream(rows, corruptions="clean", shuffle=False).batch(0)["names"] == ["0", "1", "2", "3"]


def test_selected_rows_keep_the_paths_of_their_own_images(folder: Path) -> None:
    paths = sorted(map(str, folder.rglob("*.png")))
    rows = Dataset.from_dict({"image": paths}).cast_column("image", Image()).select([7, 2])
    assert shuffled_stream(rows, corruptions="clean", shuffle=False).batch(0)["names"] == ["bee/02.png", "ant/02.png"]
