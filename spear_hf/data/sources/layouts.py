"""How repositories of `datasets`, on the Hub or in a folder, lay out corrupted images; one row each in LAYOUTS."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from spear_hf.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from spear_hf.data.domains import Domain
from spear_hf.data.sources.domain_rows import DomainRowSource, domain_of, plain_name, split_by_columns
from spear_hf.data.sources.npy import NpySource
from spear_hf.data.sources.repository import SPLITS, Repository, ask, pick_name
from spear_hf.data.sources.rows import RowSource
from spear_hf.data.sources.source import Source
from spear_hf.errors import DataError

KNOWN_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
SEVERITY_SPLIT = re.compile(r"severity[_-]?\d")


def open_plain(repository: Repository) -> Source:
    """One split of clean images, or of rows that each name their corruption."""
    config = pick_name("config", repository.configs, repository.config, ())
    split = pick_name("split", repository.splits(config), repository.split, SPLITS)
    dataset = repository.load(config, split)
    by_columns = split_by_columns(dataset, repository.name, repository.columns)
    return by_columns or RowSource(dataset, repository.name, repository.columns)


@dataclass(frozen=True)
class _SplitOfConfig:
    """Opens a domain as a split of a configuration."""

    repository: Repository
    places: dict[Domain, tuple[str, str]]

    def __call__(self, domain: Domain) -> RowSource:
        config, split = self.places[domain]
        return RowSource(self.repository.load(config, split), f"{config}/{split}", self.repository.columns)


def open_config_per_corruption(repository: Repository) -> Source:
    """Configurations named for corruptions, with splits severity_1 to severity_5."""
    configs = [config for config in repository.configs if plain_name(config) in KNOWN_CORRUPTIONS]
    splits = [split for split in repository.splits(configs[0]) if SEVERITY_SPLIT.fullmatch(split)] if configs else []
    if not splits:
        raise DataError(f"{repository.name} has no configuration named for a corruption with splits severity_1, ...")
    places = {domain_of(config, split): (config, split) for config in configs for split in splits}
    return DomainRowSource(repository.name, "config-split", list(places), _SplitOfConfig(repository, places))


@dataclass(frozen=True)
class _RepositoryOf:
    """Opens a domain as a repository of its own."""

    template: Repository

    def __call__(self, domain: Domain) -> RowSource:
        ((corruption, severity),) = domain.steps
        path = self.template.path.format(corruption=corruption, severity=f"{severity:g}")
        source = open_plain(replace(self.template, path=path))
        if not isinstance(source, RowSource):
            raise DataError(f"{path} holds several domains; pass it as it is, without {{corruption}} and {{severity}}")
        return source


def open_repository_per_domain(repository: Repository) -> Source:
    """ "owner/ImageNet-C-{corruption}-severity_{severity}": each domain in a repository of its own."""
    domains = [Domain(((name, float(level)),)) for name in KNOWN_CORRUPTIONS for level in range(1, 6)]
    return DomainRowSource(repository.name, "repository", domains, _RepositoryOf(repository))


def open_npy(repository: Repository) -> Source:
    """Arrays in CIFAR-10-C's layout, downloaded into the cache: all of them, 150 MB each."""
    if (folder := Path(repository.path)).is_dir():
        return NpySource({file.name: file for file in folder.glob("*.npy")}, folder.name)
    from datasets import DownloadManager

    files = [f"hf://{file}" for file in ask(hub_arrays, repository.path, repository.revision)]
    cached = ask(DownloadManager().download, files)
    arrays = {Path(file).name: Path(local) for file, local in zip(files, cached, strict=True)}
    return NpySource(arrays, repository.name)


def has_arrays(repository: Repository) -> bool:
    """Whether a folder or a Hub repository holds arrays in CIFAR-10-C's layout."""
    if (folder := Path(repository.path)).is_dir():
        names = [file.name for file in folder.glob("*.npy")]
    else:
        try:
            names = hub_arrays(repository.path, repository.revision)
        except OSError:  # offline: what lies in the cache of `datasets` is no array
            names = []
    return any(Path(name).stem in KNOWN_CORRUPTIONS for name in names)


def hub_arrays(path: str, revision: str | None) -> list[str]:
    """The paths of a Hub repository's arrays: datasets/owner/name@revision/fog.npy."""
    from fsspec import filesystem

    return filesystem("hf").glob(f"datasets/{path}" + (f"@{revision}" if revision else "") + "/**/*.npy")


def has_corruption_configs(repository: Repository) -> bool:
    """Whether configurations are named for corruptions, and their splits for severities."""
    configs = [config for config in repository.configs if plain_name(config) in KNOWN_CORRUPTIONS]
    return bool(configs) and any(SEVERITY_SPLIT.fullmatch(split) for split in repository.splits(configs[0]))


class Layout(NamedTuple):
    """One way to lay out a repository."""

    name: str
    is_it: Callable[[Repository], bool]  # asked in the order of LAYOUTS
    open: Callable[[Repository], Source]


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("repository", lambda repository: "{corruption}" in repository.path, open_repository_per_domain),
        Layout("npy", has_arrays, open_npy),
        Layout("config-split", has_corruption_configs, open_config_per_corruption),
        Layout("plain", lambda repository: True, open_plain),
    )
}
KNOWN: dict[str, str] = {  # seen on the Hub; nothing needs to be asked
    "WNJXYK/TTA-ImageNet-C": "config-split",
    "YashP54/cifar10-c": "npy",
    "Tsomaros/ImageNet-C-{corruption}-severity_{severity}": "repository",
}


def open_repository(repository: Repository, layout: str = "auto") -> Source:
    """The source in a repository, by the layout named, known or found.

    Raises:
        DataError: an unknown layout, or a repository that is not there or has no images.
    """
    if layout == "auto":
        layout = KNOWN.get(repository.path) or next(row.name for row in LAYOUTS.values() if row.is_it(repository))
    if layout not in LAYOUTS:
        raise DataError(f"layout={layout!r} is unknown; pass one of {', '.join(LAYOUTS)} or 'auto'")
    return LAYOUTS[layout].open(repository)
