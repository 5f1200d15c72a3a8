"""A notebook as a page: its text, its code and the text that its code printed."""

import json
from pathlib import Path
from typing import Any


def notebook_page(path: Path) -> str:
    """Markdown of a notebook, with a line that says where it lies."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    note = f"This page is the notebook `examples/{path.name}`; what a cell printed stands below it."
    return "\n\n".join([parts[0], f"*{note}*", *parts[1:]])


def _parts(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    printed = "".join(line for output in cell["outputs"] for line in _text(output)).rstrip()
    return [f"```python\n{text}\n```", *([f"```text\n{printed}\n```"] if printed else [])]


def _text(output: dict[str, Any]) -> list[str]:
    return output["text"] if "text" in output else output["data"].get("text/plain", [])
