"""Figures of a run, each a function from its data to a matplotlib Figure; matplotlib is the extra "plots"."""

from spear_hf.evaluation.plots.classes import class_histogram
from spear_hf.evaluation.plots.errors import error_against_parameters, error_by_domain
from spear_hf.evaluation.plots.run import figures_of, save_figures
from spear_hf.evaluation.plots.stream import clean_accuracy, distance_from_identity, running_error

__all__ = [
    "class_histogram",
    "clean_accuracy",
    "distance_from_identity",
    "error_against_parameters",
    "error_by_domain",
    "figures_of",
    "running_error",
    "save_figures",
]
