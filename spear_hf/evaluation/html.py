"""A run as one HTML page that holds everything it shows: tables, figures and provenance; it opens without a network."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from spear_hf.evaluation.plots import figures_of
from spear_hf.evaluation.report import Report
from spear_hf.evaluation.run import Run, read_run
from spear_hf.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_NAME = "report.html"
MOST_EVENTS = 200
CAPTIONS = {
    "error_by_domain": "Error of each method; a line runs from the first to the last, red where that is worse.",
    "running_error": "Above, the error so far in each domain. Below, the mean normalised entropy of each answer: from "
    "a filled dot the RSPs learned, at a hollow one the gate was shut or the batch was skipped.",
    "distance_from_identity": "How far the RSPs are from changing nothing, after each batch, by depth.",
    "clean_accuracy": "Accuracy on clean images with what each domain had taught, nothing being learned there.",
    "class_histogram": "How often each class was answered, and how often it was right; few tall bars are a collapse.",
    "error_against_parameters": "Mean error against how many numbers each method learns.",
}


def write_page(folder: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run folder, into the folder itself unless told otherwise; returns its path.

    Raises:
        DataError: a folder without a report.
        ConfigError: matplotlib is not installed.
    """
    page = render_page(read_run(folder))
    return write_atomically(Path(folder) / PAGE_NAME if output is None else output, page)


def render_page(run: Run) -> str:
    """The page, with every figure in it."""
    report, stream = run.report, run.report.provenance.get("stream", {})
    facts = {
        "protocol": stream.get("protocol"),
        "batch size": stream.get("batch_size"),
        "images": stream.get("source", {}).get("name"),
    }
    template = Template(files("spear_hf.evaluation").joinpath("report_template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_title(report)),
        subtitle=escape("; ".join(f"{name} {value}" for name, value in facts.items() if value is not None)),
        numbers=_numbers(report),
        errors=_errors(report),
        methods=_methods(report),
        figures="\n".join(_figure(name, figure) for name, figure in figures_of(run).items()),
        events=_events(run),
        provenance="\n".join(_details(name, value) for name, value in report.provenance.items()),
    )


def _title(report: Report) -> str:
    model = str(report.provenance.get("model", "a classifier")).rstrip("/").split("/")[-1]
    return f"{model} on {len(report.rows)} domain{'s' if len(report.rows) > 1 else ''}"


def _numbers(report: Report) -> str:
    """The few figures that a reader wants first."""
    first, last = report.methods[0], report.methods[-1]
    shown = [(f"{report.mean_error(method):.2f} %", f"mean error, {method}") for method in dict.fromkeys((first, last))]
    if first != last:
        shown.append((f"{report.mean_error(first) - report.mean_error(last):+.2f}", "points gained"))
    shown.append((f"{report.images:,}", "images"))
    if last in report.parameters:
        shown.append((f"{report.parameters[last]:,}", f"numbers learned by {last}"))
    return "".join(f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>" for value, text in shown)


def _errors(report: Report) -> str:
    """The table of errors, its means below."""
    first, last = report.methods[0], report.methods[-1]

    def cells(error: Mapping[str, float]) -> list[str]:
        gain = error[first] - error[last]
        mark = "better" if gain > 0 else "worse" if gain < 0 else ""
        gains = [f'<span class="{mark}">{gain:+.2f}</span>'] if first != last else []
        return [f"{error[method]:.2f}" for method in report.methods] + gains

    head = ["domain", "n", *report.methods] + (["gain"] if first != last else [])
    rows = [[escape(row.domain), f"{row.n:,}", *cells(row.error)] for row in report.rows]
    means = {method: report.mean_error(method) for method in report.methods}
    return _table(head, rows, ["mean", f"{report.images:,}", *cells(means)])


def _methods(report: Report) -> str:
    """One row for each method: its means, what it learns, what it costs, what its steps did."""
    rows = []
    for method in report.methods:
        has_likelihood = all(method in row.nll for row in report.rows)
        memory = report.memory.get(method)
        steps = ", ".join(f"{count} {why}" for why, count in report.adaptation.get(method, {}).items())
        rows.append(
            [
                escape(method),
                f"{report.mean_error(method):.2f}",
                f"{report.mean_nll(method):.4f}" if has_likelihood else "",
                f"{report.mean_ece(method):.3f}" if has_likelihood else "",
                f"{report.parameters[method]:,}" if method in report.parameters else "",
                f"{1000 * report.seconds_per_image(method):.2f}" if method in report.seconds else "",
                f"{memory / 2**20:,.1f}" if memory else "",
                escape(steps),
            ]
        )
    head = ["method", "error %", "NLL, nats", "ECE %", "learned", "ms/image", "MiB", "steps"]
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return _table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], kind="wide")


def _figure(name: str, figure: "Figure") -> str:
    """A figure as an SVG inside the page."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "spear-hf"}):  # the same run gives the same page
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    caption = escape(CAPTIONS[name])
    image = f'<img id="{name}" alt="{caption}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure><figcaption>{caption}</figcaption>{image}</figure>"


def _events(run: Run) -> str:
    """What a guard saw and did; nothing where there was no guard, or nothing to do."""
    found = [(r.batch, r.domain, event) for r in run.steps if r.step is not None for event in r.step.events]
    if not found:
        return ""
    rows = [[str(batch), escape(domain), escape(event)] for batch, domain, event in found[:MOST_EVENTS]]
    more = f"<p>{len(found) - MOST_EVENTS:,} more in steps.jsonl</p>" if len(found) > MOST_EVENTS else ""
    table = _table(["batch", "domain", "event"], rows, kind="wide")
    return f'<h2>What the guard did</h2><div class="scroll">{table}</div>{more}'


def _details(name: str, value: Any) -> str:
    """One entry of the provenance, folded."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], foot: Sequence[str] | None = None, *, kind: str = ""
) -> str:
    """An HTML table; the cells are HTML already, the head is text."""

    def line(cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"

    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    bottom = f"<tfoot>{line(foot)}</tfoot>" if foot is not None else ""
    return (
        f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(map(line, rows))}</tbody>{bottom}</table>'
    )
