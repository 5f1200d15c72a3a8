"""Folders of images, ImageNet-C's tree and CIFAR-10-C's arrays."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import pictures, write_pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")


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
        load_stream(tree, corruptions="all")
    with pytest.raises(DataError, match="does not hold clean"):
        load_stream(tree)


def test_a_tree_of_other_corruptions_is_read_whole(tree: Path) -> None:
    (tree / "fog").rename(tree / "caustic_refraction")
    (tree / "snow").rename(tree / "sparkles")
    assert load_stream(tree, corruptions="all").domains == ["caustic_refraction/5", "sparkles/5"]


def test_a_file_that_another_domain_lacks_is_named(tree: Path) -> None:
    (tree / "snow" / "5" / "n00000001" / "ILSVRC2012_val_1.png").unlink()
    with pytest.raises(DataError, match=r"ImageNet-C/snow/5/n00000001/ILSVRC2012_val_1.png cannot be decoded"):
        list(load_stream(tree, corruptions="snow"))


def test_a_preset_for_corrupted_images_is_refused(tree: Path) -> None:
    with pytest.raises(DataError, match=r"preset='cifar'.* are corrupted already; leave both at 'auto'"):
        load_stream(tree, corruptions="fog", preset="cifar")


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """fog.npy and snow.npy, 4 images at each severity, and labels.npy."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for key, name in enumerate(("fog", "snow")):
        np.save(folder / f"{name}.npy", pictures(20, seed=key))
    np.save(folder / "labels.npy", np.tile([3, 1, 2, 0], 5))
    return folder


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_severity_s_of_an_array_is_its_sth_fifth(arrays: Path, severity: int) -> None:
    batch = load_stream(arrays, corruptions="snow", severity=severity, shuffle=False).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(20, seed=1)[(severity - 1) * 4 : severity * 4])
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


@pytest.mark.filterwarnings("ignore:pets is sorted")
def test_a_folder_is_read_with_its_classes(folder: Path) -> None:
    batch = load_stream(folder, corruptions="fog", shuffle=False, class_names=["bee", "ant"]).batch(0)
    assert batch["labels"].tolist() == [1] * 5 + [0] * 5  # pyright: ignore[reportOptionalMemberAccess]
    assert batch["index"].tolist() == list(range(10))


def test_a_folder_of_splits_is_read_at_its_test_split(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "val")
    write_pictures(tmp_path / "train" / "ant", 3)
    assert len(load_stream(tmp_path, corruptions="fog").batch(0)["index"]) == 10
    assert len(load_stream(tmp_path, corruptions="fog", split="train").batch(0)["index"]) == 3


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    assert load_stream(write_pictures(tmp_path / "flat", 4), corruptions="fog").batch(0)["labels"] is None


def test_sorted_classes_without_shuffling_warn(folder: Path) -> None:
    with pytest.warns(UserWarning, match="pets is sorted by class, .* pass shuffle=True"):
        load_stream(folder, corruptions="fog", shuffle=False)
