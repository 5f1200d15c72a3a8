"""spear-hf report: a run as a page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from spear_hf.cli.app import AsJson
from spear_hf.cli.output import print_json


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run: report.json, and steps.jsonl for most figures.")],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the folder by default.")] = None,
    figures: Annotated[bool, typer.Option(help="Write the figures as PNG files too, into RUN/figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML page with its tables and figures; it opens without a network.

    Example: spear-hf report runs/adapt
    """
    from spear_hf.evaluation.html import write_page
    from spear_hf.evaluation.plots import save_figures

    page = write_page(run, output)
    drawn = save_figures(run) if figures else []
    if as_json:
        print_json({"page": str(page), "figures": [str(path) for path in drawn]})
    else:
        print(page)
