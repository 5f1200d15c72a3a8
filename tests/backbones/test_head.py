from typing import Any

import pytest

from spear_hf.backbones.head import UNNAMED, Head

SPOKEN = Head(("cat", "dog"), ("a {}.",))


@pytest.mark.parametrize("head", [Head(), SPOKEN, Head(path=("heads", 0)), Head(function="mine:first")])
def test_what_is_written_is_read(head: Head) -> None:
    assert Head.from_dict(head.to_dict()) == head


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"code": "x"},
        {"labels": ["cat"]},
        {"labels": "cat"},
        {"labels": ["cat", 3]},
        {"labels": ["cat", "a\nb"]},
        {"labels": ["cat", "dog"], "templates": ["a photo"]},
        {"templates": ["{} {}"]},
        {"path": "main"},
        {"path": [True]},
        {"path": [1.5]},
        {"path": [0] * 17},
        {"function": 3},
    ],
)
def test_what_no_head_holds_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="head"):
        Head.from_dict(data)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (SPOKEN, None),
        (Head(("cat", "emu"), ("a {}.",)), "other labels ('emu' at 1, expected 'dog')"),
        (Head(("cat", "dog", "emu"), ("a {}.",)), "other labels (3, expected 2)"),
        (Head(("cat", "dog"), ("the {}.",)), "other templates ('the {}.' at 0, expected 'a {}.')"),
        (Head(("cat", "dog"), ("a {}.",), function="mine:first"), "logits from mine:first, expected no function"),
    ],
)
def test_differences_are_named(other: Head, difference: str | None) -> None:
    assert SPOKEN.difference(other) == difference


def test_a_function_without_a_name_is_as_good_as_any() -> None:
    assert Head(function="mine:first").difference(Head(function=UNNAMED)) is None
