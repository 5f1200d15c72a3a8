"""A run as one HTML page that contains everything it shows: tables, figures and provenance; it needs no network."""

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from spear_hf.evaluation.plots import figures_of
from spear_hf.evaluation.report import BatchRecord, Report
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.files import write_atomically
from spear_hf.utils.plotting import figure_as_text
from spear_hf.utils.validation import first_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_NAME = "report.html"
TEMPLATE_NAME = "page_template.html"
MAX_EVENTS = 200
CAPTIONS = {
    "error_by_domain": "Error of each method; a line runs from the first to the last, red where that is worse.",
    "running_error": "Above, the error so far in each domain. Below, the mean normalised entropy of each batch: "
    "from a filled dot the RSPs learned, at a hollow one the gate was shut or the batch was skipped.",
    "distance_from_identity": "How far the RSPs are from changing nothing, after each batch, by depth.",
    "clean_accuracy": "Accuracy on clean images with what each domain had taught, nothing being learned there.",
    "class_histogram": "How often each class was answered, and how often it was right; few tall bars are a collapse.",
    "error_against_parameters": "Mean error against how many numbers each method learns.",
}
UNLABELLED_CAPTIONS = {
    "running_error": "How unsure the answers are: the mean normalised entropy of each batch. From a filled dot the "
    "RSPs learned, at a hollow one the gate was shut or the batch was skipped.",
    "class_histogram": "How often each class was answered; few tall bars are a collapse.",
}


def write_page(folder: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run folder, to report.html in it by default; returns the page's path.

    >>> import tempfile
    >>> from spear_hf.evaluation.html import write_page
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> with tempfile.TemporaryDirectory() as name:
    ...     path = Report([DomainResult("fog/5", 8, {"source": 60.0})], ["source"]).to_json(f"{name}/report.json")
    ...     print(write_page(name).name)
    report.html

    Raises:
        DataError: the folder holds no report.
        ConfigError: matplotlib is not installed.
    """
    run = RunFolder(folder)
    page = render_page(run.read_report(), run.read_steps(), run.read_clean())
    return write_atomically(Path(folder) / PAGE_NAME if output is None else output, page)


def render_page(report: Report, steps: Sequence[BatchRecord] = (), clean: Report | None = None) -> str:
    """The page as HTML, with every figure inside. The same run gives the same page.

    >>> from spear_hf.evaluation.html import render_page
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> page = render_page(Report([DomainResult("fog/5", 8, {"source": 60.0})], ["source"]))
    >>> "60.00 %" in page
    True

    Args:
        report: of the run.
        steps: its batches.
        clean: of `clean_along`.
    """
    stream = report.provenance.get("stream", {})
    facts = {
        "protocol": stream.get("protocol"),
        "batch size": stream.get("batch_size"),
        "images": stream.get("source", {}).get("name"),
    }
    captions = CAPTIONS if report.has_errors else CAPTIONS | UNLABELLED_CAPTIONS
    # autoescape: names of classes, domains and models come from outside, and are text, never markup
    environment = Environment(
        loader=PackageLoader("spear_hf.evaluation", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    found = [(r.batch, r.domain, event) for r in steps if r.step is not None for event in r.step.events]
    return environment.get_template(TEMPLATE_NAME).render(
        title=_title(report),
        subtitle="; ".join(f"{name}: {value}" for name, value in facts.items() if value is not None),
        numbers=_numbers(report),
        report=report,
        methods=_methods(report),
        remarks=_remarks(report),
        figures=[(name, captions[name], _svg(f)) for name, f in figures_of(report, steps, clean).items()],
        events=found[:MAX_EVENTS],
        more_events=len(found) - MAX_EVENTS,
        provenance=[
            (name, _text(value)) for name, value in report.provenance.items() if value not in ([], {}, "", None)
        ],
    )


def _title(report: Report) -> str:
    model = str(report.provenance.get("model", "a classifier")).rstrip("/").split("/")[-1]
    if not report.has_errors:
        return f"{model}: answers for {report.images:,} images"
    return f"{model} on {len(report.rows)} domain{'s' if len(report.rows) > 1 else ''}"


def _remarks(report: Report) -> list[str]:
    """Lines about the images: how labels were matched, and what was left out."""
    remarks = list(report.provenance.get("notes", ()))
    if left_out := report.provenance.get("left_out", ()):
        remarks.append(f"left out {len(left_out):,} images that could not be read: {first_of(left_out, 5)}")
    return remarks


def _numbers(report: Report) -> list[tuple[str, str]]:
    """(number, what it is) of the few numbers at the top."""
    first, last = report.methods[0], report.methods[-1]
    mean = report.mean_row()
    if not report.has_errors:
        shown = [(f"{mean.entropy[m]:.3f}", f"mean entropy, {m}") for m in dict.fromkeys((first, last)) if mean.entropy]
        shown += [(f"{mean.changed[last]:.1f} %", "other answers than the source's")] if first != last else []
        return [*shown, (f"{report.images:,}", "images")]
    shown = [(f"{report.mean_error(method):.2f} %", f"mean error, {method}") for method in dict.fromkeys((first, last))]
    if first != last:
        shown.append((f"{report.gain(mean):+.2f}", "points gained"))
    shown.append((f"{report.images:,}", "images"))
    if last in report.parameters:
        shown.append((f"{report.parameters[last]:,}", f"numbers learned by {last}"))
    return shown


def _methods(report: Report) -> list[list[str]]:
    """The head, and for each method its means, numbers, cost and steps; columns without an entry are left out."""
    rows = [["method", "error %", "NLL, nats", "ECE %", "learned", "ms/image", "MiB", "steps"]]
    for method in report.methods:
        has_likelihood = report.has_errors and all(method in row.nll for row in report.rows)
        memory = report.memory.get(method)
        rows.append(
            [
                method,
                f"{report.mean_error(method):.2f}" if report.has_errors else "",
                f"{report.mean_nll(method):.4f}" if has_likelihood else "",
                f"{report.mean_ece(method):.3f}" if has_likelihood else "",
                f"{report.parameters[method]:,}" if method in report.parameters else "",
                f"{1000 * report.seconds_per_image(method):.2f}" if method in report.seconds else "",
                f"{memory / 2**20:,.1f}" if memory else "",
                ", ".join(f"{count} {why}" for why, count in report.adaptation.get(method, {}).items()),
            ]
        )
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def _svg(figure: "Figure") -> str:
    """The figure as SVG, in base64."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "spear-hf"}):  # without it, every page would have other ids
        figure_as_text(figure).savefig(file, format="svg", dpi=150, metadata={"Date": None})
    return base64.b64encode(file.getvalue()).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2)
