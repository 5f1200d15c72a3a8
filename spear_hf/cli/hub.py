"""spear-hf push, pull and bank: saved adapters, to the Hub, from the Hub, and which of them suits today's images."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from spear_hf.cli.adapt import CheckBase
from spear_hf.cli.app import AsJson, print_json, print_table
from spear_hf.cli.expand import expanded
from spear_hf.cli.image_options import ImageOptions
from spear_hf.cli.options import WeightOptions


def push(
    folder: Annotated[Path, typer.Argument(help="An adapter: adapter_config.json and adapter_model.safetensors.")],
    repo: Annotated[str, typer.Argument(help='"name" or "owner/name"; created if it does not exist.')],
    subfolder: Annotated[str | None, typer.Option(help="Folder in the repo, for several adapters of one base.")] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="For a new repo; default: your account's setting.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch; created if it does not exist.")] = None,
    pr: Annotated[bool, typer.Option("--pr", help="Open a pull request; works for repos of other owners too.")] = False,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upload an adapter to the Hub.

    The adapter, its card and its metrics go in one commit; no commit if nothing changed.

    The token is the one of `hf auth login`, or HF_TOKEN.

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


def pull(
    repo: Annotated[str, typer.Argument(help='"owner/name" on the Hub.')],
    folder: Annotated[Path, typer.Argument(help="Folder for the files; created if it does not exist.")],
    subfolder: Annotated[str | None, typer.Option(help="Folder in the repo, if it holds several adapters.")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit, or refs/pr/N.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download an adapter from the Hub into a folder, and check it.

    Example: spear-hf pull me/resnet50-fog adapters/fog --revision v1
    """
    from spear_hf.adapters.download import pull as pull_repo

    pulled = pull_repo(repo, folder, subfolder=subfolder, revision=revision)
    if as_json:
        print_json({"folder": str(pulled), "files": sorted(path.name for path in pulled.iterdir())})
    else:
        print(pulled)


@expanded()
def bank(
    model: Annotated[str, typer.Argument(help="The base model: a model folder, a Hub id or a timm name.")],
    dataset: Annotated[str, typer.Argument(help="Today's images: a parquet file, an image folder or a Hub dataset.")],
    adapters: Annotated[list[str], typer.Argument(help="Adapter folders, folders of adapters, or Hub repos.")],
    weights: WeightOptions,
    images: ImageOptions,
    batches: Annotated[int, typer.Option(help="Number of batches to choose by.", min=1)] = 1,
    check_base: CheckBase = "error",
    margin: Annotated[
        float | None, typer.Option(help="How much better than no adapter an adapter must score; 0 takes the best.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose the adapter that suits the first images best.

    No labels are needed; all scores are shown.

    Example: spear-hf bank microsoft/resnet-50 photos.parquet adapters me/resnet50-fog
    """
    from spear_hf.learning.bank import MARGIN, AdapterBank

    base = weights.load(model)
    stream = images.stream(dataset, base)
    held = AdapterBank.from_pretrained(base, *adapters, check_base=check_base)
    first = [batch["pixel_values"] for batch in islice(stream, batches)]
    report = held.choose(first, margin=MARGIN if margin is None else margin)
    if as_json:
        scores = [
            {"adapter": s.adapter, "information": s.information, "entropy": s.entropy, "concentration": s.concentration}
            for s in report.scores
        ]
        print_json({"chosen": report.chosen, "images": report.num_images, "scores": scores})
        return
    print_table(report.table())
    print(f"chosen: {report.chosen}")
