"""A run read back from its folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from spear_hf.errors import DataError
from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.report import Report

REPORT_NAME, STEPS_NAME, CLEAN_NAME = "report.json", "steps.jsonl", "clean.json"


@dataclass(frozen=True)
class Run:
    """A run read back.

    Args:
        report: what came out.
        steps: its batches, in stream order; none where the folder holds no steps.jsonl.
        clean: errors on clean images after each domain (`clean_along`), where they were measured.
    """

    report: Report
    steps: list[BatchRecord]
    clean: Report | None = None


def read_run(folder: str | Path) -> Run:
    """What is in a run folder.

    Raises:
        DataError: a folder without a report, or a file that is none.
    """
    folder = Path(folder)
    if not (folder / REPORT_NAME).is_file():
        raise DataError(f"{folder} holds no {REPORT_NAME}; a run folder is what `spear-hf adapt --output` finishes")
    clean = folder / CLEAN_NAME
    return Run(
        _read_report(folder / REPORT_NAME),
        read_steps(folder / STEPS_NAME),
        _read_report(clean) if clean.is_file() else None,
    )


def _read_report(path: Path) -> Report:
    try:
        return Report.from_json(path)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is no report ({error}); run again, or take another folder") from error


def read_steps(path: str | Path) -> list[BatchRecord]:
    """The records in steps.jsonl, in stream order; a last line that a kill tore is left out, a missing file is empty.

    Raises:
        DataError: a line before the last that is no record.
    """
    path, records = Path(path), []
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
    for number, line in enumerate(lines[:-1], 1):
        try:
            records.append(BatchRecord.from_dict(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number}, is no record ({error!r}); run again, or remove that line"
            ) from error
    return records
