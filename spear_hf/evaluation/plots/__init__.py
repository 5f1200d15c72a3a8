"""Figures of a run: each function takes the data and returns a matplotlib Figure. Needs the extra `plots`."""

from spear_hf.evaluation.plots.batch_figures import class_histogram, distance_from_identity, running_error
from spear_hf.evaluation.plots.report_figures import clean_accuracy, error_against_parameters, error_by_domain
from spear_hf.evaluation.plots.run_figures import figures_of, plot_parameters, save_figures

__all__ = [
    "class_histogram",
    "clean_accuracy",
    "distance_from_identity",
    "error_against_parameters",
    "error_by_domain",
    "figures_of",
    "plot_parameters",
    "running_error",
    "save_figures",
]
