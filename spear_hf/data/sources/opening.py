"""The source behind what a user names: a Dataset, a path or a Hub id."""

from pathlib import Path
from typing import Any

from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.dataset_rows import RowSource, split_by_columns
from spear_hf.data.sources.files_on_disk import FolderSource, TreeSource, find_tree, subfolders
from spear_hf.data.sources.image_source import ImageSource
from spear_hf.data.sources.iterable import IterableSource
from spear_hf.data.sources.repository import SPLITS, Repository, has_arrays, open_repository, pick_name
from spear_hf.errors import DataError


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
) -> ImageSource:
    """The source behind a Dataset, a path or a Hub id; for the options see `load_stream`.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources import Columns, open_source
    >>> len(open_source(Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3}), Columns()))
    3

    Raises:
        DataError: it does not exist, or holds no images.
    """
    if isinstance(source, str | Path):
        repository = Repository(str(source), columns, split, config, revision)
        is_local = isinstance(source, Path) or Path(source).exists() or _looks_like_path(source)
        return _open_path(Path(source), repository, layout) if is_local else open_repository(repository, layout)
    if isinstance(source, dict):  # a DatasetDict or an IterableDatasetDict
        source = source[pick_name("split", list(source), split, SPLITS)]
    return _open_dataset(source, columns, limit, window)


def _open_path(path: Path, repository: Repository, layout: str) -> ImageSource:
    """The source in a file or a folder."""
    from datasets import load_dataset, load_from_disk

    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist; pass a parquet file, a folder of images, a Dataset or a Hub id")
    if path.is_file():
        if path.suffix != ".parquet":
            raise DataError(f"{path.name!r} is not a parquet file; pass one, a folder of images, a Dataset or a Hub id")
        return _open_rows(load_dataset("parquet", data_files=str(path), split="train"), path.name, repository.columns)
    if layout != "auto" or has_arrays(repository) or _holds_parquet(path):
        return open_repository(repository, layout)
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return open_source(load_from_disk(str(path)), repository.columns, split=repository.split)
    if tree := find_tree(path):
        return TreeSource(path, tree)
    return FolderSource(_pick_folder(path, repository.split))


def _open_dataset(dataset: Any, columns: Columns, limit: int | None, window: int) -> ImageSource:
    """The source of a Dataset or an IterableDataset."""
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Dataset):
        return _open_rows(dataset, _dataset_name(dataset), columns)
    if not isinstance(dataset, IterableDataset):
        raise DataError(
            f"source is an object of type {type(dataset).__name__}; pass a Dataset, a path to parquet or images, or a "
            "Hub id"
        )
    if limit is None or limit < 1:
        raise DataError(
            f"limit={limit} and a streaming source, whose length is unknown; pass limit=, images of each domain"
        )
    return IterableSource(dataset, _dataset_name(dataset), columns, limit, window)


def _open_rows(dataset: Any, name: str, columns: Columns) -> ImageSource:
    """The source of a Dataset: with domains if its rows name a corruption and a severity."""
    return split_by_columns(dataset, name, columns) or RowSource(dataset, name, columns)


def _looks_like_path(source: str) -> bool:
    """True for a string that was meant as a path: a Hub id has at most one slash and no suffix."""
    if "{corruption}" in source:
        return False
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith((".parquet", ".arrow"))


def _holds_parquet(folder: Path) -> bool:
    """True for a dataset repository; the patterns are as deep as such repositories are."""
    return any(any(folder.glob(pattern)) for pattern in ("*.parquet", "*/*.parquet", "*/*/*/*.parquet"))


def _pick_folder(root: Path, split: str) -> Path:
    """`root`, or the folder of a split in it."""
    names = [folder.name for folder in subfolders(root)]
    is_split = bool(names) and {*SPLITS, "train"}.issuperset(names)
    return root / pick_name("split", names, split, SPLITS) if is_split or split != "auto" else root


def _dataset_name(dataset: Any) -> str:
    return dataset.info.dataset_name or "dataset"
