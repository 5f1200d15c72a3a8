from tests.support.table import PAGE, page


def test_the_page_of_what_works_is_made_of_the_tests() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support`"


def test_every_row_names_a_test_of_its_own() -> None:
    names = [line.split(" | ")[2] for line in page().splitlines() if line.startswith("| ") and "| test |" not in line]
    assert names
    assert len(set(names)) == len(names)
