"""Doctests of the package skip the modules whose extra is not installed."""

from importlib.util import find_spec

NEEDED_BY = {
    "peft": ["spear_hf/integrations/peft.py"],
    "sklearn": ["spear_hf/analysis/measures.py"],
    "matplotlib": [
        "spear_hf/analysis/grids.py",
        "spear_hf/evaluation/html.py",
        "spear_hf/evaluation/plots/run_figures.py",
    ],
}
collect_ignore = [path for library, paths in NEEDED_BY.items() if find_spec(library) is None for path in paths]
