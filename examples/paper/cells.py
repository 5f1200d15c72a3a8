"""cells.csv: one line for each finished cell of every table, written as soon as the cell is finished."""

import csv
import io
from pathlib import Path
from typing import Any

from spear_hf.evaluation.report import Report

KEY = ("table", "column", "protocol", "label", "batch_size", "images")


def add_cell(path: Path, label: str, report: Report, **key: Any) -> bool:
    """Append the line of a cell, unless the file has one; whether a line was added.

    Several processes may write to one file, as long as each runs other cells.

    Args:
        path: the file; made with a header where it is missing. All cells have the same domains.
        label: the method of the report.
        report: of one method.
        key: the other values of KEY.
    """
    cell = {"label": label, **key}
    identity = [str(cell[name]) for name in KEY]
    errors = {row.domain.split("/")[0]: f"{row.error[label]:.3f}" for row in report.rows}
    cost = {
        "ms_per_image": f"{1000 * report.seconds_per_image(label):.3f}",
        "learned": str(report.parameters.get(label, 0)),
    }
    figures = {"error": f"{report.mean_error(label):.3f}"} | errors | cost
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(_line([*KEY, *figures]))
    with path.open(newline="") as file:
        known = [row[: len(KEY)] for row in csv.reader(file)]
    if identity in known:
        return False
    with path.open("a") as file:
        file.write(_line([*identity, *figures.values()]))
    return True


def _line(values: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
