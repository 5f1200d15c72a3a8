"""The source behind what a user names: a Dataset, a path, a list or a Hub id."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spear_hf.data.sources.archives import ArchiveSource, is_archive
from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.dataset_rows import RowSource, split_by_columns
from spear_hf.data.sources.files_on_disk import FolderSource, TreeSource, find_tree, subfolders
from spear_hf.data.sources.image_files import IMAGE_SUFFIXES, is_image, list_images
from spear_hf.data.sources.image_list import ImageList
from spear_hf.data.sources.image_source import ImageSource
from spear_hf.data.sources.iterable import IterableSource
from spear_hf.data.sources.repository import SPLITS, Repository, has_arrays, open_repository, pick_name
from spear_hf.data.sources.splits import pick_split
from spear_hf.data.sources.tables import TABLES, find_metadata, open_metadata, open_table
from spear_hf.data.sources.video import VIDEOS, VideoSource
from spear_hf.errors import DataError

_ALLOWED = (
    "pass a folder of images, an image, a pattern such as 'photos/*.jpg', a parquet, csv, text, zip, tar or video "
    "file, a list of paths or images, a Dataset, or a Hub id"
)


def open_source(
    source: Any,
    columns: Columns,
    *,
    split: str = "auto",
    config: str = "auto",
    layout: str = "auto",
    limit: int | None = None,
    window: int = 512,
    revision: str | None = None,
    streaming: bool = False,
) -> ImageSource:
    """The source behind a Dataset, a path, a list or a Hub id; for the options see `load_stream`.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources import Columns, open_source
    >>> len(open_source(Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3}), Columns()))
    3

    Raises:
        DataError: it does not exist, or holds no images.
    """
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        repository = Repository(str(source), columns, split, config, revision)
        if streaming and (path.suffix == ".parquet" or not path.exists() or _holds_parquet(path)):
            return _open_streaming(path, repository, limit, window)  # other local files are read one by one anyway
        if isinstance(source, Path) or path.exists() or _looks_like_path(source):
            return _open_path(path, Repository(str(path), columns, split, config, revision), layout)
        return open_repository(repository, layout)
    if isinstance(source, dict):  # a DatasetDict or an IterableDatasetDict
        source, split = source[pick_name("split", list(source), split, SPLITS)], "auto"
    _refuse_unused(_type_name(source), split=split, config=config, layout=layout, revision=revision or "auto")
    if isinstance(source, list | tuple):
        return _open_list(source, columns)
    return _open_dataset(source, columns, limit, window)


def _open_path(path: Path, repository: Repository, layout: str) -> ImageSource:
    """The source in a file, in a folder, or in the files of a pattern."""
    if not path.exists():
        files = [Path(file) for file in sorted(glob.glob(str(path), recursive=True)) if Path(file).is_file()]
        if not files:
            what = "matches no file" if glob.has_magic(str(path)) else "does not exist"
            raise DataError(f"{str(path)!r} {what}; {_ALLOWED}")
        return _open_files(files, path.name, repository, layout)
    return (
        _open_folder(path, repository, layout) if path.is_dir() else _open_files([path], path.name, repository, layout)
    )


def _open_files(files: list[Path], name: str, repository: Repository, layout: str) -> ImageSource:
    """The source in one file, or in several of one kind."""
    from datasets import load_dataset

    columns = repository.columns
    split = "auto" if repository.split == "train" and files[0].suffix == ".parquet" else repository.split
    _refuse_unused(
        repr(name), split=split, config=repository.config, layout=layout, revision=repository.revision or "auto"
    )
    if all(file.suffix.lower() == ".parquet" for file in files):
        rows = load_dataset("parquet", data_files=[str(file) for file in files], split="train")
        return _open_rows(rows, name, columns, files[0].parent)
    if all(map(is_archive, files)):
        return ArchiveSource(files, name, columns.label)
    if len(files) == 1 and files[0].suffix.lower() in TABLES:
        return open_table(files[0], columns)
    if len(files) == 1 and files[0].suffix.lower() in VIDEOS:
        return VideoSource(files[0])
    others = [file.name for file in files if file.suffix.lower() not in IMAGE_SUFFIXES and not is_image(file)]
    if others:
        raise DataError(f"{len(others)} of {len(files)} files are no images ({', '.join(others[:3])}); {_ALLOWED}")
    _refuse_columns(columns, repr(name))
    if columns.label not in ("auto", None):
        raise DataError(f"label_column={columns.label!r}, but {name!r} has no labels; pass the folder, or a table")
    shared = Path(os.path.commonpath([file.parent for file in files]))
    return ImageList(files, name, [file.relative_to(shared).as_posix() for file in files])


def _open_folder(path: Path, repository: Repository, layout: str) -> ImageSource:
    """The source in a folder."""
    from datasets import load_from_disk

    columns = repository.columns
    if layout != "auto" or has_arrays(repository):
        return open_repository(repository, layout)
    if _holds_parquet(path):
        if images := list_images(path).images:
            raise DataError(
                f"{path.name!r} holds parquet files and {len(images)} images ({images[0]}, ...); pass the parquet "
                "file, a pattern such as 'photos/**/*.jpg', or layout='plain' for the parquet files"
            )
        return open_repository(repository, layout)
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        saved = load_from_disk(str(path))
        return open_source(saved, columns, split=repository.split)
    _refuse_unused(repr(path.name), config=repository.config, revision=repository.revision or "auto")
    if tree := find_tree(path):
        _refuse_unused(repr(path.name), split=repository.split)
        return TreeSource(path, tree, columns.label)
    if metadata := find_metadata(path):
        _refuse_unused(repr(path.name), split=repository.split)
        return open_metadata(metadata, columns)
    shards = sorted(file for file in path.iterdir() if is_archive(file))
    if shards and not list_images(path).images:
        return ArchiveSource(shards, path.name, columns.label)
    if (name := pick_split([folder.name for folder in subfolders(path)], repository.split)) is not None:
        loose = sorted(file.name for file in path.iterdir() if file.is_file() and file.suffix.lower() in IMAGE_SUFFIXES)
        if loose:
            raise DataError(
                f"{len(loose)} images lie beside the split folders of {path.name!r} ({loose[0]}, ...); move them, or "
                f"pass the folder of one split, such as {name!r}"
            )
        inner = Repository(str(path / name), columns, "auto", repository.config, repository.revision)
        return _open_folder(path / name, inner, layout)
    _refuse_columns(columns, repr(path.name))
    return FolderSource(path, columns.label)


def _open_list(items: Sequence[Any], columns: Columns) -> ImageSource:
    """The source of a list of images, or of archives."""
    _refuse_columns(columns, "a list")
    if items and all(isinstance(item, str | Path) and is_archive(item) for item in items):
        return ArchiveSource([Path(item).expanduser() for item in items], "list", columns.label)
    if columns.label not in ("auto", None):
        raise DataError(f"label_column={columns.label!r}, but a list has no labels; pass a Dataset or a csv file")
    return ImageList(items)


def _open_streaming(path: Path, repository: Repository, limit: int | None, window: int) -> ImageSource:
    """The rows of a repository or of a parquet file, read when they are shown."""
    from datasets import load_dataset

    if path.is_file():
        _refuse_unused(repr(path.name), split=repository.split, config=repository.config)
        rows = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        return IterableSource(rows, path.name, repository.columns, limit, window)  # pyright: ignore[reportArgumentType]
    dataset, count = repository.stream()
    return IterableSource(dataset, repository.name, repository.columns, limit or count, window)


def _open_dataset(dataset: Any, columns: Columns, limit: int | None, window: int) -> ImageSource:
    """The source of a Dataset or an IterableDataset."""
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Dataset):
        return _open_rows(dataset, _dataset_name(dataset), columns)
    if not isinstance(dataset, IterableDataset):
        raise DataError(f"source is an object of type {type(dataset).__name__}; {_ALLOWED}")
    return IterableSource(dataset, _dataset_name(dataset), columns, limit, window)


def _open_rows(dataset: Any, name: str, columns: Columns, root: Path = Path()) -> ImageSource:
    """The source of a Dataset: with domains if its rows name a corruption and a severity."""
    return split_by_columns(dataset, name, columns) or RowSource(dataset, name, columns, root)


def _refuse_unused(what: str, **options: str) -> None:
    """Refuse an option that this source cannot follow."""
    for name, value in options.items():
        if value != "auto":
            raise DataError(f"{name}={value!r}, but {what} has no {name}s to choose from; leave {name} at 'auto'")


def _refuse_columns(columns: Columns, what: str) -> None:
    if columns.image != "auto":
        raise DataError(f"image_column={columns.image!r}, but {what} has no columns; leave it at 'auto'")


def _looks_like_path(source: str) -> bool:
    """True for a string that was meant as a path: a Hub id has at most one slash and no suffix of a file."""
    if "{corruption}" in source:
        return False
    suffixes = (".parquet", ".arrow", *TABLES, *VIDEOS, *IMAGE_SUFFIXES)
    is_file = source.lower().endswith(suffixes) or is_archive(source) or glob.has_magic(source)
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or is_file


def _holds_parquet(folder: Path) -> bool:
    """True for a dataset repository; the patterns are as deep as such repositories are."""
    return any(any(folder.glob(pattern)) for pattern in ("*.parquet", "*/*.parquet", "*/*/*/*.parquet"))


def _type_name(source: Any) -> str:
    return f"a {type(source).__name__}"


def _dataset_name(dataset: Any) -> str:
    return dataset.info.dataset_name or "dataset"
