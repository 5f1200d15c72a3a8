"""A dataset repository, on the Hub or in a folder, and the layouts in which repositories hold corrupted images."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spear_hf.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from spear_hf.data.domains import Domain
from spear_hf.data.sources.arrays import ArraySource
from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.dataset_rows import DomainRowSource, RowSource, domain_of, plain_name, split_by_columns
from spear_hf.data.sources.image_source import ImageSource
from spear_hf.errors import DataError
from spear_hf.utils.validation import first_line

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

SPLITS = ("test", "validation", "val", "valid", "eval")  # in the order of "auto"; "train" only if there is no other
KNOWN_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
SEVERITY_SPLIT = re.compile(r"severity[_-]?\d")


@dataclass(frozen=True)
class Repository:
    """A dataset repository: a Hub id or a folder.

    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.repository import Repository
    >>> Repository("uoft-cs/cifar10", Columns()).name
    'uoft-cs/cifar10'

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
        """The Hub id, or the name of the folder."""
        return Path(self.path).name if Path(self.path).exists() else self.path

    @cached_property
    def configs(self) -> list[str]:
        """Names of the configurations."""
        from datasets import get_dataset_config_names

        return _ask(get_dataset_config_names, self.path, revision=self.revision)

    def splits(self, config: str) -> list[str]:
        """Names of the splits of a configuration."""
        from datasets import get_dataset_split_names

        return _ask(get_dataset_split_names, self.path, config, revision=self.revision)

    def load(self, config: str, split: str) -> "Dataset":
        """One split, downloaded into the cache."""
        from datasets import load_dataset

        return _ask(load_dataset, self.path, config, split=split, revision=self.revision)

    def stream(self) -> tuple["IterableDataset", int | None]:
        """One split that is downloaded when it is read, and its number of rows if the repository tells it."""
        from datasets import load_dataset, load_dataset_builder

        config = pick_name("config", self.configs, self.config, ())
        split = pick_name("split", self.splits(config), self.split, SPLITS)
        info = _ask(load_dataset_builder, self.path, config, revision=self.revision).info
        told = (info.splits or {}).get(split)
        dataset = _ask(load_dataset, self.path, config, split=split, revision=self.revision, streaming=True)
        return dataset, None if told is None else told.num_examples or None


def pick_name(what: str, names: list[str], wanted: str, usual: tuple[str, ...]) -> str:
    """The one of `names` that is wanted; "auto" takes the first usual one, or the only one.

    >>> from spear_hf.data.sources.repository import SPLITS, pick_name
    >>> pick_name("split", ["train", "test"], "auto", SPLITS)
    'test'

    Raises:
        DataError: a name that does not exist, or an "auto" that is ambiguous.
    """
    if wanted in names:
        return wanted
    found = [name for name in usual if name in names] or (names if len(names) == 1 else [])
    if wanted != "auto" or not found:
        shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
        raise DataError(f"{what}={wanted!r} does not exist or is ambiguous; pass one of {shown}")
    return found[0]


def _ask(function: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
    """`function(path, ...)`; errors of the libraries about a missing or unreadable repository become a DataError."""
    from datasets.exceptions import DatasetsError

    try:
        return function(path, *args, **options)
    except (DatasetsError, OSError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        hint = (
            "it is a loading script, which datasets does not run any more: look for a parquet copy"
            if "script" in reason
            else ("check the name, the revision and the connection, or pass a local path")
        )
        raise DataError(f"{path!r} gave no dataset ({reason}); {hint}") from error


def _open_plain(repository: Repository) -> ImageSource:
    """One split of clean images, or of rows with a corruption each."""
    config = pick_name("config", repository.configs, repository.config, ())
    split = pick_name("split", repository.splits(config), repository.split, SPLITS)
    dataset = repository.load(config, split)
    by_columns = split_by_columns(dataset, repository.name, repository.columns)
    return by_columns or RowSource(dataset, repository.name, repository.columns)


@dataclass(frozen=True)
class _SplitOfConfig:
    """Opens a domain that is a split of a configuration."""

    repository: Repository
    places: dict[Domain, tuple[str, str]]

    def __call__(self, domain: Domain) -> RowSource:
        config, split = self.places[domain]
        return RowSource(self.repository.load(config, split), f"{config}/{split}", self.repository.columns)


def _open_config_per_corruption(repository: Repository) -> ImageSource:
    """A configuration for each corruption, with splits severity_1 to severity_5."""
    configs = [config for config in repository.configs if plain_name(config) in KNOWN_CORRUPTIONS]
    splits = [split for split in repository.splits(configs[0]) if SEVERITY_SPLIT.fullmatch(split)] if configs else []
    if not splits:
        raise DataError(
            f"{repository.name} has no configuration with the name of a corruption and splits severity_1, ..."
        )
    places = {domain_of(config, split): (config, split) for config in configs for split in splits}
    return DomainRowSource(repository.name, "config-split", list(places), _SplitOfConfig(repository, places))


@dataclass(frozen=True)
class _RepositoryOf:
    """Opens a domain that has its own repository."""

    template: Repository

    def __call__(self, domain: Domain) -> RowSource:
        ((corruption, severity),) = domain.steps
        path = self.template.path.format(corruption=corruption, severity=f"{severity:g}")
        source = _open_plain(replace(self.template, path=path))
        if not isinstance(source, RowSource):
            raise DataError(f"{path} holds several domains; pass it without {{corruption}} and {{severity}}")
        return source


def _open_repository_per_domain(repository: Repository) -> ImageSource:
    """ "owner/ImageNet-C-{corruption}-severity_{severity}": a repository for each domain."""
    domains = [Domain(((name, float(level)),)) for name in KNOWN_CORRUPTIONS for level in range(1, 6)]
    return DomainRowSource(repository.name, "repository", domains, _RepositoryOf(repository))


def _open_npy(repository: Repository) -> ImageSource:
    """Arrays in CIFAR-10-C's layout; those on the Hub are all downloaded into the cache, 150 MB each."""
    if (folder := Path(repository.path)).is_dir():
        return ArraySource({file.name: file for file in folder.glob("*.npy")}, folder.name)
    from datasets import DownloadManager

    files = [f"hf://{file}" for file in _ask(_hub_arrays, repository.path, repository.revision)]
    cached = _ask(DownloadManager().download, files)
    arrays = {Path(file).name: Path(local) for file, local in zip(files, cached, strict=True)}
    return ArraySource(arrays, repository.name)


def has_arrays(repository: Repository) -> bool:
    """True if a folder or a Hub repository holds arrays in CIFAR-10-C's layout.

    >>> import tempfile
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.repository import Repository, has_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     has_arrays(Repository(folder, Columns()))
    False
    """
    if (folder := Path(repository.path)).is_dir():
        names = [file.name for file in folder.glob("*.npy")]
    else:
        try:
            names = _hub_arrays(repository.path, repository.revision)
        except OSError:  # offline: the cache of `datasets` holds no arrays
            names = []
    return any(Path(name).stem in KNOWN_CORRUPTIONS for name in names)


def _hub_arrays(path: str, revision: str | None) -> list[str]:
    """The paths of a Hub repository's arrays: datasets/owner/name@revision/fog.npy."""
    from fsspec import filesystem

    return filesystem("hf").glob(f"datasets/{path}" + (f"@{revision}" if revision else "") + "/**/*.npy")


def _has_corruption_configs(repository: Repository) -> bool:
    """True if configurations have the names of corruptions, and their splits those of severities."""
    configs = [config for config in repository.configs if plain_name(config) in KNOWN_CORRUPTIONS]
    return bool(configs) and any(SEVERITY_SPLIT.fullmatch(split) for split in repository.splits(configs[0]))


class Layout(NamedTuple):
    """One layout of a repository.

    >>> from spear_hf.data.sources import LAYOUTS
    >>> list(LAYOUTS)
    ['repository', 'npy', 'config-split', 'plain']
    """

    name: str
    matches: Callable[[Repository], bool]  # tried in the order of LAYOUTS
    open: Callable[[Repository], ImageSource]


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("repository", lambda repository: "{corruption}" in repository.path, _open_repository_per_domain),
        Layout("npy", has_arrays, _open_npy),
        Layout("config-split", _has_corruption_configs, _open_config_per_corruption),
        Layout("plain", lambda repository: True, _open_plain),
    )
}
KNOWN: dict[str, str] = {  # repositories of the Hub whose layout needs no request
    "WNJXYK/TTA-ImageNet-C": "config-split",
    "YashP54/cifar10-c": "npy",
    "Tsomaros/ImageNet-C-{corruption}-severity_{severity}": "repository",
}


def open_repository(repository: Repository, layout: str = "auto") -> ImageSource:
    """The source in a repository; "auto" detects the layout.

    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.repository import Repository, open_repository
    >>> open_repository(Repository("owner/name", Columns()), layout="tar")
    Traceback (most recent call last):
    spear_hf.errors.DataError: layout='tar' is unknown; pass one of repository, npy, config-split, plain or 'auto'

    Raises:
        DataError: an unknown layout, or a repository that does not exist or has no images.
    """
    if layout == "auto":
        layout = KNOWN.get(repository.path) or next(row.name for row in LAYOUTS.values() if row.matches(repository))
    if layout not in LAYOUTS:
        raise DataError(f"layout={layout!r} is unknown; pass one of {', '.join(LAYOUTS)} or 'auto'")
    return LAYOUTS[layout].open(repository)
