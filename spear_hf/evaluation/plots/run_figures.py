"""All figures for which a run has data, and their files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spear_hf.errors import ConfigError
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.plots.batch_figures import class_histogram, distance_from_identity, running_error
from spear_hf.evaluation.plots.report_figures import clean_accuracy, error_against_parameters, error_by_domain
from spear_hf.evaluation.report import BatchRecord, Report
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures_of(report: Report, steps: Sequence[BatchRecord] = (), clean: Report | None = None) -> dict[str, "Figure"]:
    """name -> figure, in the order of a page; a figure without data is left out.

    >>> from spear_hf.evaluation.plots.run_figures import figures_of
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> list(figures_of(Report([DomainResult("fog/5", 8, {"source": 60.0})], ["source"])))
    ['error_by_domain']

    Args:
        report: of the run.
        steps: its batches.
        clean: of `clean_along`.
    """
    figures = {"error_by_domain": error_by_domain(report)} if report.has_errors else {}
    if any(record.step is not None for record in steps):
        figures["running_error"] = running_error(steps, report.provenance.get("config", {}).get("tau") or None)
    if any(record.deviations for record in steps):
        figures["distance_from_identity"] = distance_from_identity(steps)
    if clean is not None:
        figures["clean_accuracy"] = clean_accuracy(clean)
    if any(record.answers for record in steps):
        figures["class_histogram"] = class_histogram(steps, report.provenance.get("class_names"))
    if len(report.parameters) > 1 and report.has_errors:
        figures["error_against_parameters"] = error_against_parameters(report.points())
    return figures


def save_figures(folder: str | Path) -> list[Path]:
    """Write every figure of a run folder to figures/NAME.png in it; returns the paths.

    >>> import tempfile
    >>> from spear_hf.evaluation.plots.run_figures import save_figures
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> with tempfile.TemporaryDirectory() as name:
    ...     path = Report([DomainResult("fog/5", 8, {"source": 60.0})], ["source"]).to_json(f"{name}/report.json")
    ...     print([figure.name for figure in save_figures(name)])
    ['error_by_domain.png']

    Raises:
        DataError: the folder holds no report.
        ConfigError: matplotlib is not installed.
    """
    run = RunFolder(folder)
    figures = figures_of(run.read_report(), run.read_steps(), run.read_clean())
    return [save_figure(figure, Path(folder) / "figures" / f"{name}.png", dpi=120) for name, figure in figures.items()]


def plot_parameters(comparison: Comparison, path: str | Path, title: str = "") -> Path:
    """Write `error_against_parameters` of a comparison, its errors averaged over the batch sizes; returns the path.

    >>> import tempfile
    >>> from spear_hf.evaluation.comparison import Comparison
    >>> from spear_hf.evaluation.plots.run_figures import plot_parameters
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> report = Report([DomainResult("fog/5", 8, {"tent": 40.0})], ["tent"], parameters={"tent": 96})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plot_parameters(Comparison({("tent", 16): report}), f"{folder}/figure.png").name)
    figure.png

    Args:
        comparison: its methods that ran at every batch size are drawn.
        path: the suffix says the format: png, svg, pdf.
        title: above the figure.

    Raises:
        ConfigError: no method ran, or matplotlib is not installed.
    """
    points = comparison.points()
    if not points:
        raise ConfigError("no method of this comparison ran, so there is nothing to draw; see refusals()")
    sizes = f"mean over batch {', '.join(map(str, comparison.batch_sizes))}"
    return save_figure(error_against_parameters(points, f"{title}; {sizes}" if title else sizes), path)
