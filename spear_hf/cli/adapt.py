"""spear-hf adapt: steer a model through a stream, and leave a report, the batches and the adapters in a folder."""

import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.app import AsJson, Labelled, ModelName
from spear_hf.cli.images import Images, Weights
from spear_hf.cli.options import expanded
from spear_hf.cli.output import print_json, print_table
from spear_hf.cli.running import Running
from spear_hf.config import SpearConfig

if TYPE_CHECKING:
    from pathlib import Path

    from spear_hf.evaluation.report import Report


@expanded
def adapt(
    model: ModelName,
    dataset: Labelled,
    weights: Weights,
    running: Running,
    images: Images,
    config: SpearConfig,
    guard: Annotated[
        bool, typer.Option("--guard", help="Watch the learner, and stop it before it is worse than the source.")
    ] = False,
    clean_images: Annotated[
        int, typer.Option(help="At the end, answer so many clean images with what each domain taught.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Answer a stream three times: as it is, with mixed statistics, and with SPeaR, which learns as it goes.

    Leaves report.json, steps.jsonl and an adapter for each domain. Ctrl-C keeps what is done: the same command goes on.

    Example: spear-hf adapt microsoft/resnet-50 photos.parquet --corruptions fog
    """
    from spear_hf.evaluation.baselines import baselines
    from spear_hf.evaluation.preservation import clean_along
    from spear_hf.guard import Guard
    from spear_hf.learning.spear import Spear
    from spear_hf.steering.model import get_spear_model

    accelerator = running.accelerator()
    base = weights.load(model)
    stream = images.stream(dataset, base)
    clean = images.clean(clean_images).stream(dataset, base) if clean_images else None
    base.to(accelerator.device)
    pristine = copy.deepcopy(base)
    facts = facts_of(model, pristine) | {"config": config.to_dict(), "guard": guard}
    steered = get_spear_model(base, config)
    learner: Any = Spear(steered, accelerator=accelerator)
    learner = Guard(learner, accelerator=accelerator) if guard else learner
    methods = baselines(steered, pristine, accelerator=accelerator) | {"SPeaR": learner}
    folder = running.folder(steered, is_main=accelerator.is_main_process)
    report = running.evaluate(methods, stream, folder, accelerator=accelerator, provenance=facts)
    adapters = folder.finish(report)
    if clean is not None:
        folder.keep_clean(clean_along(steered, folder.learned, pristine, clean, accelerator=accelerator))
    if accelerator.is_main_process:
        show(
            report, f"{model}, {images.protocol}, batch {images.batch_size}", running.output, adapters, as_json=as_json
        )


def facts_of(name: str, base: Any) -> dict[str, Any]:
    """What a report says of the model: its name, its fingerprint, the names of its classes."""
    from spear_hf.backbones.fingerprint import fingerprint
    from spear_hf.data.processor import load_class_names

    classes = load_class_names(base)
    named = (
        {}
        if classes is None
        else {"class_names": [names if isinstance(names, str) else names[-1] for names in classes]}
    )
    return {"model": name, "base": fingerprint(base).to_dict()} | named


def show(report: "Report", title: str, output: str, adapters: "list[Path]", *, as_json: bool) -> None:
    """The table of a run and where it lies; or the whole report as JSON, with the paths."""
    if as_json:
        print_json(report.to_dict() | {"output": output, "adapters": [str(path) for path in adapters]})
        return
    print_table(report.table(title))
    for method, steps in report.adaptation.items():
        print(f"{method} steps: " + ", ".join(f"{count} {why}" for why, count in steps.items()))
    print(f"saved {output}" + (f" with {len(adapters)} adapters" if adapters else ""))
    print(f"a page with figures: spear-hf report {output}")
