"""From what a user names to a Source."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spear_hf.data.sources.folder import FolderSource
from spear_hf.data.sources.rows import RowSource
from spear_hf.data.sources.source import Source
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("test", "validation", "val", "valid", "eval")  # what "auto" takes first; "train" only where it is alone


def open_source(
    source: Any,
    *,
    split: str = "auto",
    image_column: str = "auto",
    label_column: str | None = "auto",
    prefer_wnid: bool = False,
    revision: str | None = None,
) -> Source:
    """The Source behind a Dataset, a path or a Hub id.

    Raises:
        DataError: nothing is there, or it holds no images.
    """
    if isinstance(source, Path) or (isinstance(source, str) and (Path(source).exists() or looks_like_path(source))):
        path = Path(source)
        if is_image_folder(path):
            root = pick_folder(path, split)
            return FolderSource(root)
        dataset, name = load_local(path, split), path.name
    elif isinstance(source, str):
        dataset, name = load_from_hub(source, split, revision), source
    else:
        dataset = pick_split(source, split)
        name = dataset_name(dataset)
    columns = {"image_column": image_column, "label_column": label_column, "prefer_wnid": prefer_wnid}
    return RowSource(as_dataset(dataset), name, **columns)


def looks_like_path(source: str) -> bool:
    """Whether a string that is no existing path was meant as one: a Hub id has one slash at most and no suffix."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith((".parquet", ".arrow"))


def is_image_folder(path: Path) -> bool:
    """Whether a path is a folder of image files, rather than of parquet files or a saved Dataset.

    Raises:
        DataError: the path does not exist.
    """
    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist; pass a parquet file, a folder of images, a Dataset or a Hub id")
    return path.is_dir() and not any(path.glob("*.json")) and not any(path.rglob("*.parquet"))


def pick_folder(root: Path, split: str) -> Path:
    """`root`, or the folder of a split below it."""
    names = [entry.name for entry in root.iterdir() if entry.is_dir()]
    if split != "auto" and split not in names:
        raise DataError(f"split={split!r} is no folder in {root.name!r}; there are {', '.join(sorted(names)[:8])}")
    known = {*SPLITS, "train"}
    return root / pick_name(names, split) if split != "auto" or (names and known.issuperset(names)) else root


def pick_name(names: Iterable[str], split: str) -> str:
    """The split to read.

    Raises:
        DataError: a split that is not there, or "auto" where none is for testing.
    """
    names = list(names)
    if split in names:
        return split
    usual = [name for name in SPLITS if name in names] or (names if len(names) == 1 else [])
    if split != "auto" or not usual:
        raise DataError(f"split={split!r} is not there or not clear; pass one of {', '.join(map(repr, names))}")
    return usual[0]


def pick_split(source: Any, split: str) -> Any:
    """The Dataset itself, or the split of a DatasetDict."""
    return source[pick_name(source, split)] if isinstance(source, dict) else source


def load_local(path: Path, split: str) -> Any:
    """A parquet file, a folder of parquet files, or a folder that `save_to_disk` wrote."""
    from datasets import load_dataset, load_from_disk

    if path.is_file():
        if path.suffix != ".parquet":
            raise DataError(f"{path.name!r} is no parquet file; pass one, a folder of images, a Dataset or a Hub id")
        return load_dataset("parquet", data_files=str(path), split="train")
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return pick_split(load_from_disk(str(path)), split)
    return pick_split(load_dataset(str(path)), split)


def load_from_hub(name: str, split: str, revision: str | None) -> Any:
    """A dataset of the Hub, downloaded into the cache."""
    from datasets import get_dataset_split_names, load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        names = get_dataset_split_names(name, revision=revision)
        return load_dataset(name, split=pick_name(names, split), revision=revision)
    except (DatasetNotFoundError, ConnectionError, FileNotFoundError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{name!r} is no path here, and the Hub gave nothing ({reason}); check the name") from error


def as_dataset(source: Any) -> "Dataset":
    """`source`, if it is a Dataset with at least one row."""
    from datasets import Dataset

    if not isinstance(source, Dataset):
        raise DataError(
            f"an object of type {type(source).__name__} came; pass a Dataset, a path to parquet or images, or a Hub id"
        )
    if len(source) == 0:
        raise DataError(f"{dataset_name(source)} has no rows; pass a source with images")
    return source


def dataset_name(source: Any) -> str:
    """What to call a Dataset that was handed over."""
    return getattr(getattr(source, "info", None), "dataset_name", None) or "dataset"
