"""Tables of paths: csv, tsv and jsonl files, text files with a path a line, and the metadata file of a folder."""

import csv
import io
import json
import re
import warnings
from pathlib import Path, PurePosixPath
from typing import Any

from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.dataset_rows import RowSource
from spear_hf.data.sources.image_files import IMAGE_SUFFIXES, list_images
from spear_hf.errors import DataError
from spear_hf.utils.validation import first_of

TABLES = (".csv", ".tsv", ".jsonl", ".txt", ".lst")
METADATA = ("metadata.csv", "metadata.jsonl")
PATH_COLUMNS = (
    "file_name", "filename", "image_path", "img_path", "image_file", "file_path", "filepath", "path", "file", "image",
    "img", "name", "image_name", "image_id", "id",
)  # fmt: skip
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")


def open_table(path: Path, columns: Columns) -> RowSource:
    """The images that a table names; relative paths start at the folder of the table.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.tables import open_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "test.csv").write_text("path,label\\na.png,cat\\nb.png,bee\\n")
    ...     open_table(Path(folder) / "test.csv", Columns()).classes
    ['bee', 'cat']

    Args:
        path: a file with one of the endings TABLES.
        columns: which columns to read; "auto" takes the first usual name for paths. In a text file without a header the
            columns are "image" and, if each line ends in a number, "label".

    Raises:
        DataError: an unreadable table, or one without a column of paths.
    """
    return _rows_of(_read(path), path, columns)


def _rows_of(table: dict[str, list[str | None]], path: Path, columns: Columns) -> RowSource:
    from datasets import Dataset

    column = _path_column(table, columns.image, path)
    rows = Dataset.from_dict({name: _typed(cells) if name != column else cells for name, cells in table.items()})
    return RowSource(rows, path.name, columns._replace(image=column), path.parent)


def find_metadata(folder: Path) -> Path | None:
    """The metadata file of a folder of images, as `datasets` reads it: it has a column file_name; None without one.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.tables import find_metadata
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     find_metadata(Path(folder)) is None
    True
    """
    for path in (folder / name for name in METADATA):
        if path.is_file():
            with path.open(encoding="utf-8-sig") as file:
                if "file_name" in file.readline():
                    return path
    return None


def open_metadata(path: Path, columns: Columns) -> RowSource:
    """The images that the metadata file of a folder names; images that it does not name are counted in the notes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.tables import open_metadata
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "metadata.csv").write_text("file_name,label\\na.png,cat\\n")
    ...     open_metadata(Path(folder) / "metadata.csv", Columns()).notes
    []
    """
    table = _read(path)
    named = {PurePosixPath(cell or "") for cell in table["file_name"]}
    if columns.image == "auto":
        columns = columns._replace(image="file_name")
    source = _rows_of(table, path, columns)
    if others := [image for image in list_images(path.parent).images if image not in named]:
        shown = first_of(others, 3, ", and ")
        source.notes.append(
            f"{path.name}: {len(others)} images of the folder are not named in it and left out ({shown})"
        )
        warnings.warn(source.notes[-1], stacklevel=6)
    return source


def _read(path: Path) -> dict[str, list[str | None]]:
    """column -> its cells."""
    try:
        table = _parsed(path)
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise DataError(f"{path.name!r} cannot be read as a table ({error}); pass UTF-8 csv, tsv or jsonl") from error
    if not table or not next(iter(table.values())):
        raise DataError(f"{path.name!r} has no rows; pass a table with a column of paths")
    return table


def _parsed(path: Path) -> dict[str, list[str | None]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}
    if path.suffix in (".txt", ".lst"):
        return _read_lines(text, path.parent)
    first = text.splitlines()[0] if text.strip() else ""
    delimiter = "\t" if path.suffix == ".tsv" else max(",;\t|", key=first.count)
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    rows = list(reader)
    return {name: [row.get(name) or None for row in rows] for name in reader.fieldnames or ()}


def _read_lines(text: str, folder: Path) -> dict[str, list[str | None]]:
    """A path in each line, or a path and a number, as in the lists of Caffe."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    pairs = [line.rsplit(maxsplit=1) for line in lines]
    is_pair = all(len(pair) == 2 and _WHOLE.fullmatch(pair[1]) for pair in pairs)
    if is_pair and not any((folder / line).exists() for line in lines[:1]):
        return {"image": [pair[0] for pair in pairs], "label": [pair[1] for pair in pairs]}
    return {"image": list(lines)}


def _path_column(table: dict[str, list[Any]], wanted: str, path: Path) -> str:
    if wanted != "auto" and wanted in table:
        return wanted
    found = [name for name in PATH_COLUMNS if name in table and _holds_paths(table[name])]
    if wanted != "auto" or not found:
        came = f"image_column={wanted!r} is not a column of" if wanted != "auto" else "no column of paths in"
        raise DataError(f"{came} {path.name!r}; its columns are {', '.join(table)}: pass image_column= with one")
    return found[0]


def _holds_paths(cells: list[Any]) -> bool:
    first = next((cell for cell in cells if cell), "")
    return isinstance(first, str) and ("/" in first or Path(first).suffix.lower() in IMAGE_SUFFIXES)


def _typed(cells: list[Any]) -> list[Any]:
    """Cells that are all whole numbers as integers; "007" is a name."""
    filled = [cell for cell in cells if cell is not None]
    is_whole = bool(filled) and all(isinstance(cell, str) and _WHOLE.fullmatch(cell.strip()) for cell in filled)
    return [None if cell is None else int(cell) for cell in cells] if is_whole else cells
