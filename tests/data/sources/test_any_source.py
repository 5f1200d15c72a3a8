"""Everything that holds images is a source: each keeps its order and its names, and what is left out is told."""

import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spear_hf.data.image_stream import ImageStream
from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import pictures, write_pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three flat images; the current folder is the one that holds theirs."""
    monkeypatch.chdir(tmp_path)
    return write_pictures(tmp_path / "photos", 3)


def names(stream: ImageStream) -> list[str]:
    return [name for batch in stream for name in batch["names"]]


def labels(stream: ImageStream) -> list[int] | None:
    found = [batch["labels"] for batch in stream]
    return None if found[0] is None else [int(label) for part in found if part is not None for label in part]


def as_text(folder: Path) -> Path:
    (folder / "list.txt").write_text("# a comment\nphotos/00.png\nphotos/01.png\n\nphotos/02.png\n")
    return folder / "list.txt"


def as_csv(folder: Path) -> Path:
    rows = "".join(f"{i};photos/{i:02d}.png\n" for i in range(3))
    (folder / "table.csv").write_text(f"number;path\n{rows}")
    return folder / "table.csv"


def as_jsonl(folder: Path) -> Path:
    (folder / "table.jsonl").write_text("".join(f'{{"image": "photos/{i:02d}.png"}}\n' for i in range(3)))
    return folder / "table.jsonl"


def as_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for file in sorted((folder / "photos").iterdir()):
            archive.write(file, f"photos/{file.name}")
    return folder / "photos.zip"


SOURCES: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda folder: folder / "photos",
    "a relative path": lambda folder: "photos/",
    "a pattern": lambda folder: "photos/*.png",
    "a text file": as_text,
    "a csv": as_csv,
    "a jsonl": as_jsonl,
    "a zip": as_zip,
    "a list of paths": lambda folder: sorted((folder / "photos").iterdir()),
    "a list of PIL images": lambda folder: [Image.open(file) for file in sorted((folder / "photos").iterdir())],
    "a list of arrays": lambda folder: list(pictures(3)),
    "a list of bytes": lambda folder: [file.read_bytes() for file in sorted((folder / "photos").iterdir())],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_images_in_their_order(photos: Path, kind: str) -> None:
    stream = load_stream(SOURCES[kind](photos.parent))
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(3))
    assert [Path(name).stem.zfill(2) for name in names(stream)] == ["00", "01", "02"]
    assert labels(stream) is None


def test_one_image_is_a_source(photos: Path) -> None:
    assert names(load_stream(photos / "01.png")) == ["01.png"]


def test_a_list_of_caffe_has_labels(photos: Path) -> None:
    (photos.parent / "val.txt").write_text("photos/00.png 2\nphotos/01.png 0\n")
    assert labels(load_stream("val.txt", class_names=["a", "b", "c"])) == [2, 0]


def test_a_csv_column_of_whole_numbers_is_taken_by_value(photos: Path) -> None:
    (photos.parent / "t.csv").write_text("path,label\nphotos/00.png,10\nphotos/01.png,2\n")
    assert labels(load_stream("t.csv", class_names=[f"LABEL_{k}" for k in range(12)])) == [10, 2]


def test_holes_in_a_csv_are_named_and_skipped_on_demand(photos: Path) -> None:
    (photos.parent / "t.csv").write_text("path,label\nphotos/00.png,a\nphotos/gone.png,a\n,a\nphotos/02.png,\n")
    with pytest.raises(DataError, match=r"1 of 4 images have no label: row 3 of t.csv \(02.png\)"):
        load_stream("t.csv")
    stream = load_stream("t.csv", skip_broken=True)
    assert names(stream) == ["photos/00.png"]
    assert stream.skipped_names == ["photos/gone.png", "2", "photos/02.png"]


def test_a_csv_without_paths_is_refused_with_its_columns(photos: Path) -> None:
    (photos.parent / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"no column of paths in 't.csv'; its columns are a, b: pass image_column="):
        load_stream("t.csv")


def test_the_metadata_of_a_folder_gives_its_labels_and_counts_what_it_leaves_out(photos: Path) -> None:
    (photos / "metadata.csv").write_text("file_name,label\n02.png,cat\n00.png,bee\n")
    with pytest.warns(UserWarning, match=r"1 images of the folder are not named in it and left out \(01.png\)"):
        stream = load_stream(photos)
    assert (names(stream), labels(stream)) == (["02.png", "00.png"], [1, 0])


def test_archives_are_read_as_shards_with_their_class_folders(photos: Path) -> None:
    for number, member in enumerate(("dog/a.png", "cat/b.png")):
        with zipfile.ZipFile(photos.parent / f"{number}.zip", "w") as archive:
            archive.write(photos / "00.png", member)
    stream = load_stream("*.zip", class_names=["cat", "dog"], num_workers=1)
    assert (names(stream), labels(stream)) == (["0.zip/dog/a.png", "1.zip/cat/b.png"], [1, 0])


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_webdataset_is_read_with_its_labels_in_any_order(photos: Path, mode: Any) -> None:
    import tarfile
    from io import BytesIO

    with tarfile.open(photos.parent / "set.tar", mode) as archive:
        for i in range(3):
            archive.add(photos / f"{i:02d}.png", f"{i:02d}.png")
            info = tarfile.TarInfo(f"{i:02d}.cls")
            info.size = 1
            archive.addfile(info, BytesIO(str(2 - i).encode()))
    stream = load_stream(photos.parent / "set.tar", class_names=["a", "b", "c"], batch_size=1)
    assert labels(stream) == [2, 1, 0]
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(3)[:1])


def test_a_damaged_archive_is_refused(photos: Path) -> None:
    (photos.parent / "set.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"'set.zip' is no readable archive"):
        load_stream("set.zip")


def test_a_video_asks_for_a_decoder(photos: Path) -> None:
    if find_spec("av") is not None:
        pytest.skip("a decoder is installed")
    (photos.parent / "a.mp4").write_bytes(b"")
    with pytest.raises(DataError, match=r"'a\.mp4' is a video, and no decoder is installed; pip install av"):
        load_stream("a.mp4")


def test_folders_of_dates_are_no_classes_and_the_notes_say_so(photos: Path) -> None:
    photos.rename(photos.parent / "2024-05-01")
    stream = load_stream(photos.parent, class_names=["cat"])
    assert (names(stream)[0], labels(stream)) == ("2024-05-01/00.png", None)
    assert stream.notes == ["labels: none, because the folders are dates (2024-05-01)"]


def test_no_image_beside_the_class_folders_is_left_out(photos: Path) -> None:
    write_pictures(photos / "cat" / "deep", 1)
    (photos / "x.heic").write_bytes(b"?")
    with pytest.warns(UserWarning, match="left out|beside") as told:
        stream = load_stream(photos, class_names=["cat"])
    assert names(stream) == ["00.png", "01.png", "02.png", "cat/deep/00.png"]
    assert "1 file of an unknown kind is left out (x.heic)" in str(told[0].message)
    assert "3 of 4 images lie beside the folders (00.png, 01.png, 02.png)" in str(told[1].message)


def test_a_file_without_an_ending_is_known_by_its_first_bytes(photos: Path) -> None:
    (photos / "00.png").rename(photos / "00")
    assert names(load_stream(photos)) == ["00", "01.png", "02.png"]


def test_linked_folders_are_followed_and_loops_are_not(photos: Path) -> None:
    (photos.parent / "set" / "cat").mkdir(parents=True)
    (photos.parent / "set" / "cat" / "more").symlink_to(photos)
    (photos.parent / "set" / "cat" / "loop").symlink_to(photos.parent / "set")
    assert names(load_stream("set")) == [f"cat/more/0{i}.png" for i in range(3)]


@pytest.mark.parametrize("splits", [("Training", "Testing"), ("seg_train", "seg_test"), ("TRAIN", "val")])
def test_splits_are_found_whatever_they_are_called(photos: Path, splits: tuple[str, str]) -> None:
    for split in splits:
        write_pictures(photos.parent / "mri" / split / "glioma", 1)
    assert load_stream("mri").classes == ["glioma"]
    write_pictures(photos.parent / "mri" / "more", 1)
    assert load_stream("mri").classes == sorted([*splits, "more"])


@pytest.mark.parametrize(
    ("source", "options", "refusal"),
    [
        ("photos", {"config": "x"}, "config='x', but 'photos' has no configs"),
        ("photos/*.png", {"split": "test"}, r"split='test', but '\*.png' has no splits to choose from; leave split"),
        ([Image.new("RGB", (8, 8))], {"split": "test"}, "split='test', but a list has no splits"),
        (["photos/00.png"], {"label_column": "label"}, "label_column='label', but a list has no labels"),
        ("photos", {"label_column": "label"}, "label_column='label', but photos holds images without folders"),
        ("photos", {"image_column": "img"}, "image_column='img', but 'photos' has no columns"),
        ("photos/*.gif", {}, r"'photos/\*.gif' matches no file"),
        ([], {}, "list is empty"),
        ([3], {}, "item 0 of the list is a int"),
    ],
)
def test_an_option_or_a_source_that_means_nothing_is_refused(
    photos: Path, source: Any, options: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(DataError, match=refusal):
        load_stream(source, **options)
