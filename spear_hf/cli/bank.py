"""spear-hf bank: which of several adapters serves today's images best."""

from itertools import islice
from typing import Annotated

import typer

from spear_hf.cli.app import AsJson
from spear_hf.cli.images import AsTheyAre, Weights
from spear_hf.cli.options import expanded
from spear_hf.cli.output import print_json, print_table


@expanded
def bank(
    model: Annotated[str, typer.Argument(help="The base: a model folder, a Hub id or a timm name.")],
    dataset: Annotated[str, typer.Argument(help="Today's images: a parquet file, a folder, or a Hub dataset.")],
    adapters: Annotated[list[str], typer.Argument(help="Adapter folders, folders of them, or Hub repos.")],
    weights: Weights,
    images: AsTheyAre,
    batches: Annotated[int, typer.Option(help="How many batches to choose by.", min=1)] = 1,
    margin: Annotated[
        float | None, typer.Option(help="By how much an adapter must beat the identity; 0 takes the best.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose, without labels, the adapter that serves the first batches of a stream best, and show the scores.

    Example: spear-hf bank microsoft/resnet-50 photos.parquet adapters me/resnet50-fog
    """
    from spear_hf.learning.bank import MARGIN, AdapterBank

    base = weights.load(model)
    stream = images.stream(dataset, base)
    held = AdapterBank.from_pretrained(base, *adapters)
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
