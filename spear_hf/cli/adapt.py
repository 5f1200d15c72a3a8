"""spear-hf adapt and eval: a model on a stream, with learning and without."""

import copy
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.app import AsJson, Labelled, ModelName, print_json, print_table
from spear_hf.cli.expand import expanded
from spear_hf.cli.options import ImageOptions, ResumableRunOptions, WeightOptions
from spear_hf.config import SpearConfig

if TYPE_CHECKING:
    from spear_hf.evaluation.report import Report

CLEAN = ImageOptions(corruptions="clean")
EVAL_RUN = ResumableRunOptions(output=Path("runs/eval"))


@expanded()
def adapt(
    model: ModelName,
    dataset: Labelled,
    weights: WeightOptions,
    running: ResumableRunOptions,
    images: ImageOptions,
    config: SpearConfig,
    guard: Annotated[
        bool, typer.Option("--guard", help="Watch the learner and fall back to the source model if it gets worse.")
    ] = False,
    clean_images: Annotated[
        int, typer.Option(help="Number of clean images to test each domain's adapter on, at the end.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Adapt a model to a stream of images with SPeaR, and compare it with the frozen model.

    Three methods predict every batch: the source model, the source model with mixed batch statistics, and SPeaR, which
    also learns from it. The output folder gets report.json, steps.jsonl and an adapter for each domain. After Ctrl-C
    the same command continues.

    Example: spear-hf adapt microsoft/resnet-50 photos.parquet --corruptions fog
    """
    from spear_hf.evaluation.preservation import baselines, clean_along
    from spear_hf.guard import Guard
    from spear_hf.learning.spear import Spear
    from spear_hf.steering.model import get_spear_model

    accelerator = running.accelerator()
    base = weights.load(model)
    stream = images.stream(dataset, base)
    clean = images.clean(clean_images).stream(dataset, base) if clean_images else None
    base.to(accelerator.device)
    pristine = copy.deepcopy(base)
    facts = _model_facts(model, pristine) | {"config": config.to_dict(), "guard": guard}
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
        title = f"{model}, {images.protocol}, batch {images.batch_size}"
        _show(report, title, running.output, adapters, as_json=as_json)


@expanded()
def evaluate(
    model: ModelName,
    dataset: Labelled,
    weights: WeightOptions,
    running: ResumableRunOptions = EVAL_RUN,
    images: ImageOptions = CLEAN,
    adapter: Annotated[
        list[str] | None, typer.Option(help="An adapter folder or Hub repo; can be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the errors of a frozen model on a stream, alone and with saved adapters; nothing is learned.

    Example: spear-hf eval microsoft/resnet-50 photos.parquet --adapter me/fog
    """
    from spear_hf.baselines import Source
    from spear_hf.evaluation.preservation import Frozen
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel

    accelerator = running.accelerator()
    base = weights.load(model)
    stream = images.stream(dataset, base)
    base.to(accelerator.device)
    sources = adapter or []
    facts = _model_facts(model, base) | {"adapters": sources}
    methods: dict[str, TTAMethod] = {"source": Source(copy.deepcopy(base), accelerator=accelerator)}
    for source in sources:
        steered = SpearModel.from_pretrained(copy.deepcopy(base), source)
        methods[_label(source, methods)] = Frozen(steered, accelerator=accelerator)
    folder = running.folder(None, is_main=accelerator.is_main_process)
    report = running.evaluate(methods, stream, folder, accelerator=accelerator, provenance=facts)
    if accelerator.is_main_process:
        folder.finish(report)
        _show(report, f"{model}, frozen", running.output, [], as_json=as_json)


def _label(source: str, taken: Collection[str]) -> str:
    """The column name of an adapter: the last part of its source, or the whole source if that name is taken."""
    from spear_hf.adapters.names import name_of

    return source if (name := name_of(source)) in taken else name


def _model_facts(name: str, base: Any) -> dict[str, Any]:
    """The facts about the model in a report: its name, its fingerprint and the names of its classes."""
    from spear_hf.backbones.fingerprint import fingerprint
    from spear_hf.data.processor import load_class_names

    facts = {"model": name, "base": fingerprint(base).to_dict()}
    classes = load_class_names(base)
    if classes is None:
        return facts
    return facts | {"class_names": [names if isinstance(names, str) else names[-1] for names in classes]}


def _show(report: "Report", title: str, output: Path, adapters: list[Path], *, as_json: bool) -> None:
    """Print the table of a run and its paths, or the whole report as JSON."""
    if as_json:
        print_json(report.to_dict() | {"output": str(output), "adapters": [str(path) for path in adapters]})
        return
    print_table(report.table(title))
    for method, steps in report.adaptation.items():
        print(f"{method} steps: " + ", ".join(f"{count} {why}" for why, count in steps.items()))
    print(f"saved {output}" + (f" with {len(adapters)} adapters" if adapters else ""))
    print(f"a page with figures: spear-hf report {output}")
