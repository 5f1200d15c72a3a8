"""Writes docs/support.md again from the tests of this folder."""

from tests.support.table import PAGE, page

PAGE.write_text(page())
