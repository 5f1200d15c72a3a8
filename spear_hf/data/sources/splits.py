"""Folders that are the splits of a dataset, whatever they are called."""

import re
from collections.abc import Sequence

from spear_hf.data.sources.repository import SPLITS, pick_name

_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation"}
_WORDS |= {"valid": "validation", "val": "validation", "eval": "eval", "evaluation": "eval", "dev": "validation"}
_FILLERS = ("set", "data", "images", "seg", "split")


def split_of(folder: str) -> str | None:
    """The split that the name of a folder means; None for another name.

    >>> from spear_hf.data.sources.splits import split_of
    >>> split_of("Testing"), split_of("seg_train"), split_of("cat")
    ('test', 'train', None)
    """
    words = [word for word in re.split(r"[\W_]+", folder.casefold()) if word and word not in _FILLERS]
    return _WORDS.get(words[0]) if len(words) == 1 else None


def pick_split(folders: Sequence[str], wanted: str) -> str | None:
    """The folder of a split, if all folders are splits or one is asked for; None for other folders.

    >>> from spear_hf.data.sources.splits import pick_split
    >>> pick_split(["Training", "Testing"], "auto")
    'Testing'
    >>> pick_split(["cat", "dog"], "auto") is None
    True

    Raises:
        DataError: a split that is not there, or several that "auto" cannot choose from.
    """
    meanings = [split_of(folder) for folder in folders]
    if wanted == "auto" and not (folders and all(meanings)):
        return None
    if wanted in folders or None in meanings or len(set(meanings)) < len(meanings):
        return pick_name("split", list(folders), wanted, SPLITS)
    asked = wanted if wanted == "auto" else split_of(wanted) or wanted
    if asked != "auto" and asked not in meanings:
        return pick_name("split", list(folders), wanted, SPLITS)
    found = pick_name("split", [str(meaning) for meaning in meanings], asked, SPLITS)
    return folders[meanings.index(found)]
