"""spear-hf eval: a frozen model, and saved adapters on it, on a stream."""

import copy
from collections.abc import Collection
from typing import Annotated

import typer

from spear_hf.cli.adapt import facts_of, show
from spear_hf.cli.app import AsJson, Labelled, ModelName
from spear_hf.cli.images import AsTheyAre, Weights
from spear_hf.cli.options import expanded
from spear_hf.cli.running import Evaluating


@expanded
def evaluate(
    model: ModelName,
    dataset: Labelled,
    weights: Weights,
    running: Evaluating,
    images: AsTheyAre,
    adapter: Annotated[
        list[str] | None, typer.Option(help="An adapter folder or Hub repo; may be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the errors of a frozen model on a stream, and those of saved adapters on it; nothing is learned.

    Example: spear-hf eval microsoft/resnet-50 photos.parquet --adapter me/fog
    """
    from spear_hf.baselines import Source
    from spear_hf.evaluation.frozen import Frozen
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel

    accelerator = running.accelerator()
    base = weights.load(model)
    stream = images.stream(dataset, base)
    base.to(accelerator.device)
    sources = adapter or []
    facts = facts_of(model, base) | {"adapters": sources}
    methods: dict[str, TTAMethod] = {"source": Source(copy.deepcopy(base), accelerator=accelerator)}
    for source in sources:
        steered = SpearModel.from_pretrained(copy.deepcopy(base), source)
        methods[_label(source, methods)] = Frozen(steered, accelerator=accelerator)
    folder = running.folder(None, is_main=accelerator.is_main_process)
    report = running.evaluate(methods, stream, folder, accelerator=accelerator, provenance=facts)
    if accelerator.is_main_process:
        folder.finish(report)
        show(report, f"{model}, frozen", running.output, [], as_json=as_json)


def _label(source: str, taken: Collection[str]) -> str:
    """The column of an adapter: the last part of its source, or all of it where another one has that name."""
    from spear_hf.adapters.names import name_of

    return source if (name := name_of(source)) in taken else name
