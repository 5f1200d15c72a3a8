"""The paper's figure 2: error against the number of adapted parameters."""

from pathlib import Path

from spear_hf.errors import ConfigError
from spear_hf.evaluation.comparison import Comparison


def plot_parameters(comparison: Comparison, path: str | Path, title: str = "") -> Path:
    """Write the figure: a point for each method, its error averaged over the batch sizes, on a logarithmic axis.

    Methods that learn nothing stand at the left edge, at 0. The format goes by the suffix: png, svg, pdf.

    Raises:
        ConfigError: matplotlib is missing, or no method ran.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('a figure needs matplotlib; pip install "spear-hf[plots]"') from error
    points = {label: _point(comparison, label) for label in comparison.labels}
    points = {label: point for label, point in points.items() if point is not None}
    if not points:
        raise ConfigError("no method of this comparison ran, so there is nothing to draw; see refusals()")
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for place, (label, (parameters, error)) in enumerate(sorted(points.items(), key=lambda point: point[1][1])):
        marker = "*" if label.lower().startswith("spear") else "osD^vP"[place % 6]
        size = 13 if marker == "*" else 7
        style = {"linestyle": "", "markersize": size, "color": f"C{place % 10}", "alpha": 0.85}
        axes.plot([parameters], [error], marker=marker, label=f"{label}  {error:.2f}", **style)
    figure.legend(loc="outside right upper", fontsize=8, title="error, lowest first", title_fontsize=8)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(left=-0.5)
    sizes = ", ".join(map(str, comparison.batch_sizes))
    axes.set(xlabel="adapted parameters", ylabel=f"error in %, mean over batch {sizes}", title=title)
    axes.grid(alpha=0.3)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _point(comparison: Comparison, label: str) -> tuple[int, float] | None:
    """(adapted parameters, mean error); None for a method that did not run at every batch size."""
    reports = [comparison.report(label, size) for size in comparison.batch_sizes]
    found = [report for report in reports if report is not None]
    if len(found) < len(reports) or not found:
        return None
    return found[0].parameters.get(label, 0), sum(report.mean_error(label) for report in found) / len(found)
