"""The notebooks run, and what they hold is what they print."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import OFFLINE
from tests.examples.conftest import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def printed(notebook: Any) -> list[str]:
    """What each cell of code wrote on stdout, with # for numbers, which differ a little between machines."""
    texts = (
        "".join(output["text"] for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    )
    return [re.sub(r"\d[\d.,]*", "#", text) for text in texts]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that run a kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_holds(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    held = printed(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute(env=OFFLINE)
    assert printed(notebook) == held


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_path_warning_or_count(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(root|home|tmp|usr)/|site-packages|stderr", text)
    assert not re.search(r'"execution_count": \d', text)
