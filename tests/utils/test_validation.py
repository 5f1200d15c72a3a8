import pytest

from spear_hf.utils.validation import first_line, nearest, stable_json


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("\n not a number\nrow 3"), "not a number"), (OSError(), "OSError"), (KeyError(" "), "' '")],
)
def test_the_first_line_of_an_error_is_never_empty(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_an_unknown_name_gets_the_nearest_one_or_all() -> None:
    assert nearest("lerning_rate", ["steps", "learning_rate"]) == "did you mean learning_rate?"
    assert nearest("zzz", ["steps", "tau"]) == "known are steps, tau"


def test_equal_values_give_equal_json() -> None:
    assert stable_json({"b": 1, "a": [2]}) == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
