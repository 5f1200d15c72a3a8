"""All the figures that a run folder holds the data for."""

from pathlib import Path
from typing import TYPE_CHECKING

from spear_hf.evaluation.plots.classes import class_histogram
from spear_hf.evaluation.plots.errors import error_against_parameters, error_by_domain
from spear_hf.evaluation.plots.stream import clean_accuracy, distance_from_identity, running_error
from spear_hf.evaluation.run import Run, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures_of(run: Run) -> dict[str, "Figure"]:
    """name -> figure, in the order in which a page shows them."""
    figures = {"error_by_domain": error_by_domain(run.report)}
    if any(record.step is not None for record in run.steps):
        figures["running_error"] = running_error(run.steps, run.report.provenance.get("config", {}).get("tau"))
    if any(record.deviations for record in run.steps):
        figures["distance_from_identity"] = distance_from_identity(run.steps)
    if run.clean is not None:
        figures["clean_accuracy"] = clean_accuracy(run.clean)
    if any(record.answers for record in run.steps):
        figures["class_histogram"] = class_histogram(run.steps, run.report.provenance.get("class_names"))
    if len(run.report.parameters) > 1:
        figures["error_against_parameters"] = error_against_parameters([run.report])
    return figures


def save_figures(folder: str | Path) -> list[Path]:
    """Draw all figures of a run folder into figures/NAME.png there; returns the files."""
    target = Path(folder) / "figures"
    figures = figures_of(read_run(folder))
    target.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(target / f"{name}.png", dpi=120)
    return [target / f"{name}.png" for name in figures]
