import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from spear_hf import Report
from spear_hf.evaluation.report import BatchRecord, lowest, marked
from tests.builders import a_run

REPORT, STEPS = a_run()


def test_a_report_of_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    row = {"domain": "fog/5", "n": 4, "error": {"source": 25.0}}
    old = {"rows": [row], "methods": ["source"], "mean_error": {"source": 25.0}, "seconds": {"source": 1.0}}
    (tmp_path / "report.json").write_text(json.dumps(old))
    report = Report.from_json(tmp_path / "report.json")
    assert (report.mean_error("source"), report.rows[0].nll, report.memory) == (25.0, {}, {})
    assert "NaN" not in report.to_json(tmp_path / "again.json").read_text()


def test_a_table_has_the_errors_the_gain_and_the_mean() -> None:
    assert lines(REPORT) == [
        "corruption | n | source | SPeaR | gain",
        "fog/5 | 16 | 60.00 | 30.00 | +30.00",
        "snow/5 | 8 | 20.00 | 40.00 | -20.00",
        "mean | 24 | 40.00 | 35.00 | +5.00",
    ]
    assert lines(replace(REPORT, methods=["source"]))[1] == "fog/5 | 16 | 60.00"


def lines(report: Report) -> list[str]:
    text = StringIO()
    Console(width=100, file=text).print(report.table())
    rows = [line.strip("┃│ ") for line in text.getvalue().splitlines() if set(line) & set("┃│")]
    return [" | ".join(cell.strip() for cell in row.replace("┃", "│").split("│")) for row in rows]


def test_the_lowest_error_is_bold_and_a_missing_one_a_dash() -> None:
    assert lowest([float("nan"), 2.0, 3.0]) == 2.0
    assert [marked(value, best=2.0) for value in (2.0, 3.0, float("nan"))] == ["[bold]2.00[/bold]", "3.00", "-"]
    assert marked(float("nan"), best=lowest([])) == "-"


def test_a_batch_record_survives_json() -> None:
    for record in STEPS:
        assert BatchRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
