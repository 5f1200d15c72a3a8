"""Labels are found by WordNet id, then by name, and by position only where nothing speaks against it."""

import numpy as np
import pytest

from spear_hf.data.labels import describe_match, is_monotone, match_classes
from spear_hf.errors import DataError

MODEL = [("n01", "ant, pismire"), ("n02", "bee"), ("n03", "house cat"), ("n04", "crane"), ("n05", "crane")]
WNIDS = [("n00000001", "ant"), ("n00000002", "bee"), ("n00000003", "cat")]


def test_wordnet_ids_are_matched_whatever_their_order() -> None:
    found = match_classes(["n00000003", "n00000001", "n00000002"], WNIDS)
    assert found.how == "wnid"
    assert found(np.array([0, 1, 2, 0])).tolist() == [2, 0, 1, 2]
    assert found.subset is None


def test_names_are_matched_without_regard_to_case_and_underscores() -> None:
    found = match_classes(["House_Cat", "BEE"], MODEL)
    assert found.how == "name"
    assert found(np.array([0, 1])).tolist() == [2, 1]


def test_fewer_classes_are_a_subset_of_the_model() -> None:
    found = match_classes(["n00000003", "n00000001"], WNIDS)
    assert found.subset is not None
    assert found.subset.tolist() == [0, 2]


def test_names_that_the_model_lacks_are_listed() -> None:
    with pytest.raises(DataError, match=r"'dog': no single class of the model for 1 of 2 classes.*class_names="):
        match_classes(["bee", "dog"], MODEL)


def test_a_name_of_two_classes_is_not_guessed() -> None:
    with pytest.raises(DataError, match="'crane': no single class"):
        match_classes(["crane", "bee"], MODEL)


def test_numbers_as_text_with_two_possible_orders_are_refused() -> None:
    as_text = sorted(map(str, range(12)))
    with pytest.raises(
        DataError, match=r"class '10' is number 10 by its value, but 2 in the order .*pass class_names="
    ):
        match_classes(as_text, [f"LABEL_{k}" for k in range(12)])
    with pytest.raises(DataError, match="'2' comes after '11' in the order of the names as text"):
        match_classes(as_text, None)
    with pytest.raises(DataError, match="class '2' is number 2 by its value, but 4"):
        match_classes(["2"], [f"LABEL_{k}" for k in range(12)])


def test_numbers_as_text_with_one_possible_order_are_taken_by_value() -> None:
    twelve = [f"LABEL_{k}" for k in range(12)]
    assert match_classes(["03", "11"], twelve)(np.arange(2)).tolist() == [3, 11]
    assert match_classes(["3", "7"], twelve[:10])(np.arange(2)).tolist() == [3, 7]
    assert match_classes(list(map(str, range(12))), twelve)(np.arange(12)).tolist() == list(range(12))
    assert match_classes(["1", "10", "2"], ["10", "2", "1"])(np.arange(3)).tolist() == [2, 0, 1]  # these are names


def test_numbers_from_one_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"numbers \(1, 2, 3, ... up to 3\), but the model numbers its 3 classes from 0"
    ):
        match_classes(["1", "2", "3"], ["a", "b", "c"])


def test_names_are_not_matched_by_position_against_other_names() -> None:
    with pytest.raises(DataError, match="'cat', 'dog': no single class of the model for 2 of 2"):
        match_classes(["cat", "dog"], ["Hund", "Katze"])
    assert match_classes(["cat", "dog"], ["LABEL_0", "LABEL_1"]).how == "index"


def test_the_match_is_told_with_how_many_classes_occur() -> None:
    found = match_classes(["House_Cat"], MODEL)
    assert describe_match(found, ["House_Cat"], MODEL, present=1) == (
        "labels matched by name: 'House_Cat' is 2 (house cat); 1 of 5 classes occur"
    )


def test_position_decides_where_counts_agree_and_no_name_contradicts() -> None:
    assert match_classes(["ant, pismire", "bee", "cat", "crane", "crane"], MODEL).how == "index"
    assert match_classes(["LABEL_0", "LABEL_1", "LABEL_2"], WNIDS)(np.arange(3)).tolist() == [0, 1, 2]


def test_position_does_not_decide_against_a_name() -> None:
    with pytest.raises(DataError, match="'dog': no single class"):
        match_classes(["bee", "ant", "dog"], WNIDS)


def test_two_names_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="two names of one class"):
        match_classes(["n00000001", "ant"], WNIDS)


def test_without_a_model_the_source_counts_for_itself() -> None:
    found = match_classes(["b", "a"], None)
    assert (found.how, found.subset) == ("source", None)
    assert found(np.array([1, 0])).tolist() == [1, 0]


def test_bare_numbers_are_taken_as_they_are() -> None:
    assert match_classes(None, ["a", "b", "c"])(np.array([0, 2])).tolist() == [0, 2]
    assert match_classes(None, None)(np.array([7])).tolist() == [7]


def test_a_number_beyond_the_classes_is_refused() -> None:
    with pytest.raises(DataError, match=r"labels go up to 3, but there are 3 classes; choose another label_column"):
        match_classes(None, ["a", "b", "c"])(np.array([0, 3]))


@pytest.mark.parametrize(
    ("labels", "expected"), [([0, 0, 1, 2], True), ([2, 1, 0], True), ([0, 1, 0], False), ([1, 1], False), ([], False)]
)
def test_sorted_classes_are_noticed(labels: list[int], expected: bool) -> None:
    assert is_monotone(np.array(labels)) is expected
