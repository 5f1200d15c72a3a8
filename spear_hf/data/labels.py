"""Labels of a source in the numbering of a model: by WordNet id, by name, or by position if the counts agree.

Labels are used for evaluation only. A folder of 200 classes numbers them 0..199, but a network has 1,000 classes in
another order. Wrong numbers give an error near 100 %, which looks like a bad method. Classes are therefore matched by
position only if they cannot be matched by name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spear_hf.errors import DataError

ClassNames = Sequence[str | Sequence[str]]  # of a model, in index order; one name or several for each class

_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class LabelMap:
    """The model class of each class of a source.

    >>> import numpy as np
    >>> from spear_hf.data.labels import match_classes
    >>> match_classes(["dog", "cat"], model=["bee", "cat", "dog"])(np.array([0, 1, 1])).tolist()
    [2, 1, 1]

    Args:
        table: (S,) int64, model class of source class s; None keeps numbers as they are.
        how: what the classes were matched by; "source" if the classes of the model were not given.
        subset: (S,) int64, the sorted model classes that can occur; None if all classes of the model can.
    """

    table: np.ndarray | None
    how: Literal["wnid", "name", "index", "source"]
    subset: np.ndarray | None = None

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """(N,) int64 model classes of (N,) source classes.

        Raises:
            DataError: a number beyond the classes, or a negative one (as in a test split without public labels).
        """
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if low < 0:
            raise DataError(f"labels go down to {low}, as in a split whose labels are withheld; pass label_column=None")
        if self.table is None:
            return labels
        if high >= len(self.table):
            raise DataError(
                f"labels go up to {high}, but there are {len(self.table)} classes; choose another label_column, "
                "or give the column its class names (datasets.ClassLabel)"
            )
        return self.table[labels]


def is_wnid(name: str) -> bool:
    """True for a WordNet id such as n01440764.

    >>> from spear_hf.data.labels import is_wnid
    >>> is_wnid("n01440764"), is_wnid("tench")
    (True, False)
    """
    return _WNID.fullmatch(name.strip()) is not None


def has_wnids(model: ClassNames | None) -> bool:
    """True if the classes of a model have WordNet ids.

    >>> from spear_hf.data.labels import has_wnids
    >>> has_wnids([("n01440764", "tench"), ("n01443537", "goldfish")])
    True
    """
    return any(is_wnid(name) for entry in model or () for name in _names(entry))


def match_classes(source: Sequence[str] | None, model: ClassNames | None) -> LabelMap:
    """A LabelMap from the classes of a source to the classes of a model.

    >>> from spear_hf.data.labels import match_classes
    >>> found = match_classes(["House_Cat"], model=["bee", "house cat"])
    >>> found.how, found.table.tolist(), found.subset.tolist()
    ('name', [1], [1])

    Args:
        source: S class names or WordNet ids; None if labels are numbers without names, which stay as they are.
        model: K classes, each with one name or several (WordNet id, full name, ...); None keeps the source's order.

    Raises:
        DataError: a class that the model does not have, or a name that several classes of the model have.
    """
    if source is None:
        return LabelMap(None, "source") if model is None else LabelMap(np.arange(len(model)), "index")
    if model is None:
        return LabelMap(np.arange(len(source)), "source")
    index = _by_name(model)
    found = [index.get(_normalise(name), ()) for name in source]
    if all(len(hits) == 1 for hits in found):
        table = np.array([hits[0] for hits in found], dtype=np.int64)
        if len(np.unique(table)) == len(table):
            return _complete(table, "wnid" if all(map(is_wnid, source)) else "name", len(model))
    contradicts = any(hits and position not in hits for position, hits in enumerate(found))
    if len(source) == len(model) and not contradicts:
        return _complete(np.arange(len(source)), "index", len(model))
    raise DataError(
        _unmatched([name for name, hits in zip(source, found, strict=True) if len(hits) != 1], source, model)
    )


def is_monotone(labels: np.ndarray) -> bool:
    """True if labels are sorted, in either direction, and of several classes.

    >>> import numpy as np
    >>> from spear_hf.data.labels import is_monotone
    >>> is_monotone(np.array([0, 0, 1, 2])), is_monotone(np.array([0, 1, 0]))
    (True, False)
    """
    steps = np.diff(labels)
    return bool(steps.any() and ((steps >= 0).all() or (steps <= 0).all()))


def _names(entry: str | Sequence[str]) -> Iterable[str]:
    return (entry,) if isinstance(entry, str) else entry


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _by_name(model: ClassNames) -> dict[str, tuple[int, ...]]:
    """Normalised name -> the classes that have it; ImageNet has two called "crane" and two called "maillot"."""
    index: dict[str, tuple[int, ...]] = {}
    for k, entry in enumerate(model):
        for name in {_normalise(name) for name in _names(entry)}:
            index[name] = (*index.get(name, ()), k)
    return index


def _complete(table: np.ndarray, how: Literal["wnid", "name", "index"], num_classes: int) -> LabelMap:
    return LabelMap(table, how, np.sort(table) if len(table) < num_classes else None)


def _unmatched(names: Sequence[str], source: Sequence[str], model: ClassNames) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    first = ", ".join(repr(next(iter(_names(entry)))) for entry in model[:3])
    return (
        f"{shown or 'two names of one class'}: no single class of the model for {len(names)} of {len(source)} classes; "
        f"the model has {len(model)} ({first}, ...); pass class_names= in its order, or label_column=None to go without"
    )
