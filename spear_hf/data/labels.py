"""Labels of a source in the numbering of a model: by WordNet id, by name, or by number.

Labels are used for evaluation only. A folder of 200 classes numbers them 0..199, but a network has 1,000 classes in
another order. Wrong numbers give an error near 100 %, which looks like a bad method. Classes are therefore matched by
number only if one of the two has no names, and a match that could be meant in two ways is refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spear_hf.errors import DataError
from spear_hf.utils.validation import first_of

_SETTLE = "pass class_names= with these names in the order of the model, or label_column=None to go without labels"
ClassNames = Sequence[str | Sequence[str]]  # of a model, in index order; one name or several for each class

_WNID = re.compile(r"n\d{8}")
_NUMBERED = re.compile(r"(?:label|class|cls)?[ _-]?(\d+)", re.IGNORECASE)  # LABEL_7, class 7, 7: no name, a number


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
        subset: (S,) int64, the sorted model classes that occur; None if all classes of the model do.
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
        _refuse_two_orders(source)
        return LabelMap(np.arange(len(source)), "source")
    index = _by_name(model)
    found = [index.get(_normalise(name), ()) for name in source]
    if all(len(hits) == 1 for hits in found):
        table = np.array([hits[0] for hits in found], dtype=np.int64)
        if len(np.unique(table)) == len(table):
            return _complete(table, "wnid" if all(map(is_wnid, source)) else "name", len(model))
    if not any(found) and (numbers := _numbers(source)) is not None:
        return _complete(_by_number(source, numbers, len(model)), "index", len(model))
    contradicts = any(hits and position not in hits for position, hits in enumerate(found))
    nameless = _numbers([next(iter(_names(entry))) for entry in model]) == list(range(len(model)))
    if len(source) == len(model) and not contradicts and (any(found) or nameless):
        return _complete(np.arange(len(source)), "index", len(model))
    raise DataError(
        _unmatched([name for name, hits in zip(source, found, strict=True) if len(hits) != 1], source, model)
    )


def describe_match(found: LabelMap, source: Sequence[str] | None, model: ClassNames | None, present: int) -> str:
    """One line for people: how labels were matched, with the first three, and how many classes occur.

    >>> from spear_hf.data.labels import describe_match, match_classes
    >>> source, model = ["dog", "cat"], ["bee", "cat", "dog"]
    >>> describe_match(match_classes(source, model), source, model, present=2)
    "labels matched by name: 'dog' is 2 (dog), 'cat' is 1 (cat); 2 of 3 classes occur"

    Args:
        found: what `match_classes` returned for `source` and `model`.
        source, model: as for `match_classes`.
        present: number of classes that occur.
    """
    if model is None:
        return "labels are numbered as in the source, because the classes of the model were not given"
    how = {"wnid": "by WordNet id", "name": "by name"}.get(found.how, "by number")
    table = range(len(model)) if found.table is None else found.table.tolist()
    pairs = [(repr(name), table[i]) for i, name in enumerate(source or ())] or [(str(k), k) for k in table]
    shown = ", ".join(f"{name} is {k} ({_title(model[k])})" for name, k in pairs[:3]) + (", ..." if pairs[3:] else "")
    line = f"labels matched {how}: {shown}"
    if present < len(model):
        line += f"; {present:,} of {len(model):,} classes occur"
    return line


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


def _title(entry: str | Sequence[str]) -> str:
    """The last name of a class, which is the one for people."""
    return str(list(_names(entry))[-1])


def _numbers(names: Sequence[str]) -> list[int] | None:
    """The numbers in names such as LABEL_7 or 7; None if one is a real name."""
    found = [_NUMBERED.fullmatch(name.strip()) for name in names]
    return [int(match.group(1)) for match in found if match] if all(found) else None


def _by_number(source: Sequence[str], numbers: Sequence[int], num_classes: int) -> np.ndarray:
    """(S,) int64, the numbers, if no other order could be meant.

    Folders are often numbered in the order of their names as text, in which "10" comes before "2".
    """
    if max(numbers) >= num_classes or len(set(numbers)) < len(numbers):
        raise DataError(
            f"the classes are numbers ({', '.join(source[:3])}, ... up to {max(numbers)}), but the model numbers its "
            f"{num_classes} classes from 0 to {num_classes - 1}; {_SETTLE}"
        )
    if len(source) == num_classes:
        in_text = list(range(num_classes))
    elif len({len(name) for name in source}) == 1 < len(source[0]):  # 0003, 0017: both orders are the same
        in_text = list(numbers)
    else:
        ranks = {k: rank for rank, k in enumerate(sorted(range(num_classes), key=str))}
        in_text = [ranks[k] for k in numbers]
    if list(numbers) != in_text:
        name, value, rank = next(row for row in zip(source, numbers, in_text, strict=True) if row[1] != row[2])
        raise DataError(
            f"class {name!r} is number {value} by its value, but {rank} in the order of the names as text; {_SETTLE}"
        )
    return np.array(numbers, dtype=np.int64)


def _refuse_two_orders(source: Sequence[str]) -> None:
    """Refuse names that are numbers and stand in another order than their values."""
    numbers = _numbers(source)
    if numbers is not None and numbers != sorted(numbers):
        odd = next(i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1])
        raise DataError(
            f"the classes are numbers, and {source[odd]!r} comes after {source[odd - 1]!r} in the order of the names "
            f"as text, before it by value; {_SETTLE}"
        )


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
    shown = first_of([repr(name) for name in names], 5)
    first = ", ".join(repr(next(iter(_names(entry)))) for entry in model[:3])
    return (
        f"{shown or 'two names of one class'}: no single class of the model for {len(names)} of {len(source)} classes; "
        f"the model has {len(model)} ({first}, ...); pass class_names= in its order, or label_column=None to go without"
    )
