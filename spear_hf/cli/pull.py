"""spear-hf pull: an adapter from the Hub into a folder."""

from pathlib import Path
from typing import Annotated

import typer

from spear_hf.cli.app import AsJson
from spear_hf.cli.output import print_json


def pull(
    repo: Annotated[str, typer.Argument(help='"owner/name" on the Hub.')],
    folder: Annotated[Path, typer.Argument(help="Where the files go; made where it does not exist.")],
    subfolder: Annotated[str | None, typer.Option(help="Which adapter of a repo that holds several.")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit, or refs/pr/N.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy an adapter, its card and its metrics from the Hub, checked, into a folder.

    Example: spear-hf pull me/resnet50-fog adapters/fog --revision v1
    """
    from spear_hf.adapters.download import pull as pull_repo

    pulled = pull_repo(repo, folder, subfolder=subfolder, revision=revision)
    if as_json:
        print_json({"folder": str(pulled), "files": sorted(path.name for path in pulled.iterdir())})
    else:
        print(pulled)
