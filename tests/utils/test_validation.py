import pytest

from spear_hf.utils.validation import first_line, nearest, shown, stable_json


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


def test_a_value_is_shown_in_one_short_line() -> None:
    assert shown("no") == "'no'"
    assert shown("x" * 200) == f"'{'x' * 76}..."
    assert shown(10**9999) == "a number of more than 4,000 digits"
