"""From what a user names to a Source."""

from pathlib import Path
from typing import Any

from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.domain_rows import split_by_columns
from spear_hf.data.sources.folder import FolderSource, TreeSource, find_tree, subfolders
from spear_hf.data.sources.iterable import IterableSource
from spear_hf.data.sources.layouts import has_arrays, open_repository
from spear_hf.data.sources.repository import SPLITS, Repository, pick_name
from spear_hf.data.sources.rows import RowSource
from spear_hf.data.sources.source import Source
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
) -> Source:
    """The Source behind a Dataset, a path or a Hub id.

    Raises:
        DataError: nothing is there, or it holds no images.
    """
    if isinstance(source, str | Path):
        repository = Repository(str(source), columns, split, config, revision)
        is_local = isinstance(source, Path) or Path(source).exists() or looks_like_path(source)
        return open_path(Path(source), repository, layout) if is_local else open_repository(repository, layout)
    if isinstance(source, dict):  # a DatasetDict or an IterableDatasetDict
        source = source[pick_name("split", list(source), split, SPLITS)]
    return open_dataset(source, columns, limit, window)


def open_path(path: Path, repository: Repository, layout: str) -> Source:
    """The Source in a file or a folder.

    Raises:
        DataError: it does not exist, or is of another kind.
    """
    from datasets import load_dataset, load_from_disk

    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist; pass a parquet file, a folder of images, a Dataset or a Hub id")
    if path.is_file():
        if path.suffix != ".parquet":
            raise DataError(f"{path.name!r} is no parquet file; pass one, a folder of images, a Dataset or a Hub id")
        return open_rows(load_dataset("parquet", data_files=str(path), split="train"), path.name, repository.columns)
    if layout != "auto" or has_arrays(repository) or holds_parquet(path):
        return open_repository(repository, layout)
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return open_source(load_from_disk(str(path)), repository.columns, split=repository.split)
    if tree := find_tree(path):
        return TreeSource(path, tree)
    return FolderSource(pick_folder(path, repository.split))


def open_dataset(dataset: Any, columns: Columns, limit: int | None, window: int) -> Source:
    """The Source of a Dataset or an IterableDataset.

    Raises:
        DataError: another object, or a streaming dataset without a limit.
    """
    from datasets import Dataset, IterableDataset

    if isinstance(dataset, Dataset):
        return open_rows(dataset, dataset_name(dataset), columns)
    if not isinstance(dataset, IterableDataset):
        raise DataError(
            f"an object of type {type(dataset).__name__} came; pass a Dataset, a path to parquet or images, or a Hub id"
        )
    if limit is None or limit < 1:
        raise DataError(
            f"limit={limit} and a streaming source, whose length cannot be asked; pass limit=, images a domain"
        )
    return IterableSource(dataset, dataset_name(dataset), columns, limit, window)


def open_rows(dataset: Any, name: str, columns: Columns) -> Source:
    """The Source of a Dataset: by domain where its rows name a corruption and a severity."""
    return split_by_columns(dataset, name, columns) or RowSource(dataset, name, columns)


def looks_like_path(source: str) -> bool:
    """Whether a string that is no existing path was meant as one: a Hub id has one slash at most and no suffix."""
    if "{corruption}" in source:
        return False
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith((".parquet", ".arrow"))


def holds_parquet(folder: Path) -> bool:
    """Whether a folder is a dataset repository, as deep as these are laid out."""
    return any(any(folder.glob(pattern)) for pattern in ("*.parquet", "*/*.parquet", "*/*/*/*.parquet"))


def pick_folder(root: Path, split: str) -> Path:
    """`root`, or the folder of a split below it."""
    names = [folder.name for folder in subfolders(root)]
    is_split = bool(names) and {*SPLITS, "train"}.issuperset(names)
    return root / pick_name("split", names, split, SPLITS) if is_split or split != "auto" else root


def dataset_name(dataset: Any) -> str:
    """What to call a Dataset that was handed over."""
    return dataset.info.dataset_name or "dataset"
