"""A dataset repository, on the Hub or in a folder: its configurations, its splits, its rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spear_hf.data.sources.columns import Columns
from spear_hf.errors import DataError
from spear_hf.utils.validation import first_line

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("test", "validation", "val", "valid", "eval")  # what "auto" takes first; "train" only where it is alone


@dataclass(frozen=True)
class Repository:
    """A dataset repository: a Hub id or a folder.

    Args:
        path: "owner/name", "owner/name-{corruption}-{severity}" for one repository per domain, or a folder.
        columns: which columns to read.
        split: "auto" takes the test or validation split.
        config: "auto" takes the only one.
        revision: the commit of a Hub id.
    """

    path: str
    columns: Columns
    split: str = "auto"
    config: str = "auto"
    revision: str | None = None

    @cached_property
    def name(self) -> str:
        """The Hub id, or the folder's own name."""
        return Path(self.path).name if Path(self.path).exists() else self.path

    @cached_property
    def configs(self) -> list[str]:
        """Names of its configurations."""
        from datasets import get_dataset_config_names

        return ask(get_dataset_config_names, self.path, revision=self.revision)

    def splits(self, config: str) -> list[str]:
        """Names of a configuration's splits."""
        from datasets import get_dataset_split_names

        return ask(get_dataset_split_names, self.path, config, revision=self.revision)

    def load(self, config: str, split: str) -> "Dataset":
        """One split, downloaded into the cache."""
        from datasets import load_dataset

        return ask(load_dataset, self.path, config, split=split, revision=self.revision)


def pick_name(what: str, names: list[str], wanted: str, usual: tuple[str, ...]) -> str:
    """The one of `names` that is meant.

    Raises:
        DataError: one that is not there, or "auto" where it is not clear.
    """
    if wanted in names:
        return wanted
    found = [name for name in usual if name in names] or (names if len(names) == 1 else [])
    if wanted != "auto" or not found:
        shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
        raise DataError(f"{what}={wanted!r} is not there or not clear; pass one of {shown}")
    return found[0]


def ask(function: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
    """`function(path, ...)`, with what the libraries raise for a missing or unreadable repository as a DataError."""
    from datasets.exceptions import DatasetsError

    try:
        return function(path, *args, **options)
    except (DatasetsError, OSError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        hint = (
            "it is a loading script, which datasets no longer runs: look for a parquet copy"
            if "script" in reason
            else ("check the name, the revision and the connection, or pass a local path")
        )
        raise DataError(f"{path!r} gave no dataset ({reason}); {hint}") from error
