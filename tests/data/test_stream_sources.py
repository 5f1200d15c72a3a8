"""Images come from every layout that corrupted and clean datasets are published in."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, IterableDataset, Value
from PIL import Image as PILImage

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")
N = 12


def pictures(key: int = 0, n: int = N) -> np.ndarray:
    """(n, 32, 32, 3) uint8 random pixels."""
    return np.random.default_rng(key).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def rows(key: int = 0, **more: Any) -> Dataset:
    """N images with labels 0, 1, 2, 0, 1, 2, ... and further columns."""
    images = [PILImage.fromarray(image) for image in pictures(key)]
    return Dataset.from_dict({"image": images, "label": [i % 3 for i in range(N)], **more})


# ImageNet-C: corruption/severity/wnid/*.JPEG


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """fog at severities 1 and 5, snow at 5; two classes, three images each; every file has a color of its own."""
    root = tmp_path / "ImageNet-C"
    for number, (domain, wnid, i) in enumerate(
        itertools.product(("fog/1", "fog/5", "snow/5"), ("n00000002", "n00000001"), range(3))
    ):
        folder = root / domain / wnid
        folder.mkdir(parents=True, exist_ok=True)
        PILImage.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"ILSVRC2012_val_{i}.png")
    return root


def test_a_corruption_tree_is_read_and_not_corrupted_again(tree: Path) -> None:
    stream = load_stream(tree, corruptions="fog, snow", batch_size=6, shuffle=False, protocol="continual")
    reds = [batch["pixel_values"][:, 0, 0, 0].tolist() for batch in stream]
    assert stream.domains == ["fog/5", "snow/5"]
    assert reds == [[9, 10, 11, 6, 7, 8], [15, 16, 17, 12, 13, 14]]  # classes sorted: n00000001 comes first
    assert stream.describe()["corruption"]["preset"] is None


def test_a_trees_classes_are_matched_by_wordnet_id(tree: Path) -> None:
    names = [("n00000003", "cat"), ("n00000002", "bee"), ("n00000001", "ant")]
    stream = load_stream(tree, corruptions="fog", shuffle=False, class_names=names)
    assert stream.batch(0)["labels"].tolist() == [2, 2, 2, 1, 1, 1]  # pyright: ignore[reportOptionalMemberAccess]
    assert stream.class_subset is not None
    assert stream.class_subset.tolist() == [1, 2]


def test_a_folder_between_does_no_harm(tree: Path, tmp_path: Path) -> None:
    tree.rename(tmp_path / "weather")
    assert load_stream(tmp_path, corruptions="snow").domains == ["snow/5"]


def test_a_domain_that_a_tree_lacks_is_refused_with_what_there_is(tree: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold snow/1; pass corruptions= and severity= from fog/1,5, snow/5"):
        load_stream(tree, corruptions="snow", severity=1)
    with pytest.raises(DataError, match=r"does not hold gaussian_noise/5, .* and 9 more"):
        load_stream(tree)
    with pytest.raises(DataError, match="does not hold clean"):
        load_stream(tree, corruptions="clean")


def test_a_tree_of_other_corruptions_is_read_whole(tree: Path) -> None:
    (tree / "fog").rename(tree / "caustic_refraction")
    (tree / "snow").rename(tree / "sparkles")
    assert load_stream(tree).domains == ["caustic_refraction/5", "sparkles/5"]


def test_a_file_that_another_domain_lacks_is_named(tree: Path) -> None:
    (tree / "snow" / "5" / "n00000001" / "ILSVRC2012_val_1.png").unlink()
    with pytest.raises(DataError, match=r"ImageNet-C/snow/5/n00000001/ILSVRC2012_val_1.png cannot be decoded"):
        list(load_stream(tree, corruptions="snow"))


def test_a_preset_for_corrupted_images_is_refused(tree: Path) -> None:
    with pytest.raises(DataError, match=r"preset='cifar'.* are corrupted already; leave both at 'auto'"):
        load_stream(tree, corruptions="fog", preset="cifar")


# CIFAR-10-C: fog.npy, severity s is rows (s - 1) n to s n


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """fog.npy and snow.npy, 4 images at each severity, and labels.npy."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for key, name in enumerate(("fog", "snow")):
        np.save(folder / f"{name}.npy", pictures(key, 20))
    np.save(folder / "labels.npy", np.tile([3, 1, 2, 0], 5))
    return folder


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_severity_s_of_an_array_is_its_sth_fifth(arrays: Path, severity: int) -> None:
    batch = load_stream(arrays, corruptions="snow", severity=severity, shuffle=False).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(1, 20)[(severity - 1) * 4 : severity * 4])
    assert batch["labels"].tolist() == [3, 1, 2, 0]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_fraction_between_stored_severities_is_refused(arrays: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold fog/2.5; .* from fog/1,2,3,4,5, snow/1,2,3,4,5"):
        load_stream(arrays, corruptions="fog", severity=2.5)


@pytest.mark.parametrize(
    "wrong", [np.zeros((20, 32, 32), np.uint8), np.zeros((7, 8, 8, 3), np.uint8), np.zeros((5, 8, 8, 3))]
)
def test_an_array_of_another_shape_is_refused(arrays: Path, wrong: np.ndarray) -> None:
    np.save(arrays / "fog.npy", wrong)
    with pytest.raises(DataError, match=r"CIFAR-10-C/fog.npy is .* layout is uint8 \(5 n, H, W, 3\)"):
        load_stream(arrays, corruptions="fog")


def test_labels_of_another_length_are_refused(arrays: Path) -> None:
    np.save(arrays / "labels.npy", np.zeros(7, int))
    with pytest.raises(DataError, match=r"labels.npy has shape \(7,\), but CIFAR-10-C has 4 images"):
        load_stream(arrays, corruptions="fog")


def test_arrays_travel_to_workers_as_file_names(arrays: Path) -> None:
    stream = load_stream(arrays, corruptions="fog")
    assert len(pickle.dumps(stream)) < 3_000
    assert pickle.loads(pickle.dumps(stream)).batch(0)["pixel_values"].equal(stream.batch(0)["pixel_values"])


# Repositories of parquet files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A configuration for each corruption, a split for each severity, as on the Hub."""
    lines = ["---", "configs:"]
    for key, name in enumerate(("fog", "snow")):
        lines += [f"- config_name: {name}", "  data_files:"]
        for severity in (1, 5):
            file = tmp_path / "repo" / "data" / name / f"severity_{severity}" / "0.parquet"
            file.parent.mkdir(parents=True)
            rows(10 * key + severity).to_parquet(file)
            lines += [f"  - split: severity_{severity}", f"    path: data/{name}/severity_{severity}/*.parquet"]
    (tmp_path / "repo" / "README.md").write_text("\n".join([*lines, "---"]))
    return tmp_path / "repo"


def test_configurations_are_corruptions_and_splits_severities(repository: Path) -> None:
    stream = load_stream(repository, corruptions="snow, fog", severity=1, shuffle=False)
    assert stream.domains == ["snow/1", "fog/1"]
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(11))
    assert stream.describe()["source"]["kind"] == "config-split"


def test_a_plain_repository_is_corrupted_on_the_fly(tmp_path: Path) -> None:
    (tmp_path / "repo" / "data").mkdir(parents=True)
    rows().to_parquet(tmp_path / "repo" / "data" / "test-00000-of-00001.parquet")
    stream = load_stream(tmp_path / "repo", corruptions="fog")
    assert stream.describe()["corruption"]["preset"] == "cifar"


def test_a_repository_for_each_domain_is_named_by_a_template(tmp_path: Path) -> None:
    for severity in (1, 2, 3, 4, 5):
        for name in ("gaussian_noise", "fog"):
            folder = tmp_path / f"C-{name}-severity_{severity}" / "data"
            folder.mkdir(parents=True)
            rows(severity).to_parquet(folder / "validation.parquet")
    template = str(tmp_path / "C-{corruption}-severity_{severity}")
    stream = load_stream(template, corruptions="fog", severity=3, shuffle=False, layout="repository")
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(3))


def test_rows_that_name_their_corruption_are_taken_apart() -> None:
    names, levels = ["fog"] * 6 + ["Gaussian Noise"] * 6, [1, 1, 1, 2, 2, 2] * 2
    dataset = rows(corruption_name=names, corruption_level=levels)
    stream = load_stream(dataset, corruptions="gaussian_noise, fog", severity=2, shuffle=False)
    assert [batch["pixel_values"].shape[0] for batch in stream] == [3, 3]
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures()[9:12])
    assert stream.batch(1)["labels"].tolist() == [0, 1, 2]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    rows().save_to_disk(tmp_path / "saved")
    assert len(load_stream(tmp_path / "saved", corruptions="fog").batch(0)["index"]) == N


def test_an_unknown_layout_is_refused(repository: Path) -> None:
    with pytest.raises(DataError, match="layout='tar' is unknown; pass one of repository, npy, config-split, plain"):
        load_stream(repository, layout="tar")


def test_a_missing_repository_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"'nobody/nothing' gave no dataset .* check the name"):
        load_stream("nobody/nothing")


# Wordnet ids beside numbers


def test_wordnet_ids_are_preferred_where_the_model_knows_them() -> None:
    dataset = rows(wnid=[f"n0000000{i % 3}" for i in range(N)])
    names = [("n00000002", "cat"), ("n00000001", "bee"), ("n00000000", "ant")]
    by_wnid, by_number = (
        load_stream(dataset, corruptions="fog", shuffle=False, class_names=given).batch(0)["labels"]
        for given in (names, ["a", "b", "c"])
    )
    assert by_wnid.tolist() == [2, 1, 0] * 4  # pyright: ignore[reportOptionalMemberAccess]
    assert by_number.tolist() == [0, 1, 2] * 4  # pyright: ignore[reportOptionalMemberAccess]


# Streaming


def as_iterable(**more: Any) -> IterableDataset:
    return rows(**more).to_iterable_dataset(num_shards=3)


def test_a_streaming_dataset_gives_the_same_images_as_a_stored_one() -> None:
    options: dict[str, Any] = {"corruptions": "gaussian_noise", "limit": N, "shuffle": False, "batch_size": 5}
    for streamed, stored in zip(load_stream(as_iterable(), **options), load_stream(rows(), **options), strict=True):
        assert streamed["pixel_values"].equal(stored["pixel_values"])
        assert torch.equal(streamed["labels"], stored["labels"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_windows_are_shuffled_in_themselves_for_any_workers(workers: int) -> None:
    stream = load_stream(as_iterable(), corruptions="fog, snow", limit=11, window=4, batch_size=3, num_workers=workers)
    index = torch.cat([batch["index"] for batch in stream]).tolist()
    assert [sorted(part) for part in (index[:4], index[4:8], index[8:11])] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert index[:11] == index[11:]
    assert index[:11] != sorted(index[:11])


def test_a_batch_of_a_streaming_dataset_needs_no_batch_before_it() -> None:
    def fresh() -> Any:
        return load_stream(as_iterable(), corruptions="noise", limit=10, window=4, batch_size=3)

    for number, batch in enumerate(fresh()):
        assert fresh().batch(number)["pixel_values"].equal(batch["pixel_values"])


def test_a_streaming_dataset_needs_a_limit_and_meets_it() -> None:
    with pytest.raises(DataError, match="limit=None and a streaming source, whose length is unknown"):
        load_stream(as_iterable())
    with pytest.raises(DataError, match=r"limit=20, but dataset ended after 12 images; pass limit=12 or less"):
        load_stream(as_iterable(), limit=20)


def test_a_generator_without_features_is_read() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        for i, image in enumerate(pictures()):
            yield {"image": PILImage.fromarray(image), "label": i % 3}

    batch = load_stream(IterableDataset.from_generator(generate), corruptions="clean", limit=N, shuffle=False).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures())


def test_names_as_labels_of_a_streaming_dataset_are_refused() -> None:
    dataset = rows(kind=["ant"] * N).remove_columns("label").to_iterable_dataset()
    with pytest.raises(DataError, match="holds names, which a streaming source cannot number; pass label_column=None"):
        load_stream(dataset, limit=N, label_column="kind")


def test_a_streaming_dataset_sorted_by_class_warns() -> None:
    dataset = rows().sort("label").to_iterable_dataset()
    with pytest.warns(UserWarning, match="shuffled in windows only: load it without streaming=True"):
        load_stream(dataset, limit=N, corruptions="fog")


@pytest.mark.parametrize("protocol", ["mixed", "correlated"])
def test_protocols_that_read_in_any_order_refuse_a_streaming_dataset(protocol: str) -> None:
    with pytest.raises(DataError, match=f"protocol='{protocol}' reads images in any order"):
        load_stream(as_iterable(), limit=N, protocol=protocol)


def test_pixel_columns_and_named_labels_are_read() -> None:
    features = Features({"img": Value("binary"), "label": ClassLabel(names=["ant", "bee", "cat"])})
    encoded = [cell["bytes"] for cell in rows().cast_column("image", Image(decode=False))["image"]]
    dataset = Dataset.from_dict({"img": encoded, "label": [0] * N}, features=features)
    batch = load_stream(dataset, corruptions="clean", shuffle=False, class_names=["cat", "bee", "ant"]).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures())
    assert batch["labels"].tolist() == [2] * N  # pyright: ignore[reportOptionalMemberAccess]


# Real data


def test_every_photograph_of_the_imagenet_sample_finds_its_class_by_name(shared: Path) -> None:
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    names = [(info.index_to_label_name(k), info.index_to_description(k)) for k in range(1000)]
    path = shared / "imagenet_sample" / "train_1000.parquet"
    by_wnid, by_number = (
        load_stream(path, corruptions="fog", class_names=given, limit=32)
        for given in (names, [str(k) for k in range(1000)])
    )
    assert by_wnid.describe()["labels"] == "wnid"
    assert by_wnid.describe()["source"]["label_column"] == "wnid"
    assert torch.equal(by_wnid.batch(0)["labels"], by_number.batch(0)["labels"])  # pyright: ignore[reportArgumentType]
