"""spear-hf push: an adapter folder to the Hub."""

from pathlib import Path
from typing import Annotated

import typer

from spear_hf.cli.app import AsJson
from spear_hf.cli.output import print_json


def push(
    folder: Annotated[Path, typer.Argument(help="An adapter: adapter_config.json and adapter_model.safetensors.")],
    repo: Annotated[str, typer.Argument(help='"name" or "owner/name"; made where it does not exist.')],
    subfolder: Annotated[str | None, typer.Option(help="Where in the repo, for several adapters of one base.")] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Of a repo that is made now; default: your account's.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, made where it does not exist.")] = None,
    pr: Annotated[bool, typer.Option("--pr", help="Open a pull request, also to a repo of someone else's.")] = False,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upload an adapter, its card and its metrics to the Hub, in one commit; nothing new makes no commit.

    The token is that of `hf auth login`, or HF_TOKEN.

    Example: spear-hf push runs/fog/adapters/fog-5 me/resnet50-fog --private
    """
    from spear_hf.adapters.upload import push as push_folder

    info = push_folder(
        folder, repo, subfolder=subfolder, private=private, revision=revision, create_pr=pr, commit_message=message
    )
    if as_json:
        print_json({"commit": info.oid, "commit_url": info.commit_url, "pr_url": info.pr_url})
    else:
        print(info.pr_url or info.commit_url)
