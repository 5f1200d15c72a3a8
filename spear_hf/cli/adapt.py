"""spear-hf adapt and eval: answers for a folder of images, with learning and without."""

import copy
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spear_hf.cli.app import AsJson, Images, ModelName, print_json, print_table
from spear_hf.cli.calibrate import ConfigFile, configured
from spear_hf.cli.expand import expanded
from spear_hf.cli.image_options import ImageOptions
from spear_hf.cli.options import ResumableRunOptions, WeightOptions
from spear_hf.cli.refusals import in_flags
from spear_hf.config import SpearConfig
from spear_hf.utils.validation import first_of

if TYPE_CHECKING:
    from spear_hf.evaluation.report import Report

EVAL_RUN = ResumableRunOptions(output=Path("runs/eval"))
CheckBase = Annotated[
    Literal["error", "warn", "off"], typer.Option(help="What to do if an adapter was learned on another base model.")
]


@expanded()
def adapt(
    model: ModelName,
    dataset: Images,
    weights: WeightOptions,
    running: ResumableRunOptions,
    images: ImageOptions,
    config: SpearConfig,
    context: typer.Context,
    config_file: ConfigFile = None,
    guard: Annotated[
        bool, typer.Option("--guard", help="Watch the learner and fall back to the source model if it gets worse.")
    ] = False,
    clean_images: Annotated[
        int, typer.Option(help="Number of clean images to test each domain's adapter on, at the end.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Answer images while learning from them, batch by batch.

    The images are taken as they are, in their order, and need no labels. Every batch is answered first and then learned
    from. The output folder gets predictions.csv (for each image its class, probability, top 5, entropy, and what the
    model says without adapting), an adapter of what was learned, report.json and report.html. With labels, errors are
    counted too. After Ctrl-C, or a kill, the same command continues.

    Three methods answer every batch: the source model, the source model with mixed batch statistics, and SPeaR, whose
    answers are written.

    Example: spear-hf adapt microsoft/resnet-50 photos/

      A fine-tuned timm model, and answers as parquet:
      spear-hf adapt resnet50 photos/ --checkpoint best.pth.tar \\
          --class-names classes.txt --predictions answers.parquet

      A benchmark, 15 corruptions of clean images with labels:
      spear-hf adapt resnet50.a1_in1k val/ --corruptions all --shuffle
    """
    from spear_hf.evaluation.calibration.calibration import check_config_fits
    from spear_hf.evaluation.preservation import baselines, clean_along
    from spear_hf.guard import Guard
    from spear_hf.learning.spear import Spear
    from spear_hf.steering.model import get_spear_model

    config, policy = configured(context, config, config_file)
    accelerator, answers = running.accelerator(), running.answers()
    base = weights.load(model)
    if config_file is not None:
        check_config_fits(config_file, base, images.batch_size)
    stream = images.stream(dataset, base)
    clean = images.clean(clean_images).stream(dataset, base) if clean_images else None
    base.to(accelerator.device)
    pristine = copy.deepcopy(base)
    names = images.shown_names(base)
    facts = _model_facts(model, pristine, names) | {"config": config.to_dict(), "guard": guard}
    facts |= {"policy": policy.to_dict()} if guard and policy is not None else {}
    steered = get_spear_model(base, config)
    learner: Any = Spear(steered, accelerator=accelerator)
    learner = Guard(learner, policy, accelerator=accelerator) if guard else learner
    methods = baselines(steered, pristine, accelerator=accelerator) | {"SPeaR": learner}
    folder = running.folder(steered, is_main=accelerator.is_main_process)
    called = {"class_names": names, "domain_names": images.domain(dataset), "answers": answers}
    report = running.evaluate(methods, stream, folder, accelerator=accelerator, provenance=facts, **called)
    adapters = folder.finish(report)
    if clean is not None:
        folder.keep_clean(clean_along(steered, folder.learned, pristine, clean, accelerator=accelerator))
    if accelerator.is_main_process:
        title = f"{Path(model).name}, {images.protocol}, batch {images.batch_size}"
        _show(report, title, running, answers.finish(), adapters, as_json=as_json)


@expanded()
def evaluate(
    model: ModelName,
    dataset: Images,
    weights: WeightOptions,
    running: ResumableRunOptions = EVAL_RUN,
    images: ImageOptions = ImageOptions(),  # noqa: B008  replaced, never changed
    adapter: Annotated[
        list[str] | None, typer.Option(help="An adapter folder or Hub repo; can be given several times.")
    ] = None,
    check_base: CheckBase = "error",
    as_json: AsJson = False,
) -> None:
    """Answer images with a frozen model, and with saved adapters.

    Nothing is learned. The output folder gets the same files as that of `spear-hf adapt`, but no adapter; the answers
    are those of the last adapter, or of the model where none is given. With labels, errors are counted too.

    Example: spear-hf eval microsoft/resnet-50 photos/ --adapter me/fog
    """
    from spear_hf.backbones.fingerprint import weights_hash
    from spear_hf.baselines import Source
    from spear_hf.evaluation.preservation import Frozen
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel

    accelerator, answers = running.accelerator(), running.answers()
    base = weights.load(model)
    stream = images.stream(dataset, base)
    base.to(accelerator.device)
    sources, names, hashes = adapter or [], images.shown_names(base), {}
    facts = _model_facts(model, base, names) | {"adapters": sources}
    methods: dict[str, TTAMethod] = {"source": Source(copy.deepcopy(base), accelerator=accelerator)}
    for source in sources:
        steered = SpearModel.from_pretrained(copy.deepcopy(base), source, check_base=check_base)
        methods[_label(source, methods)] = Frozen(steered, accelerator=accelerator)
        hashes[source] = weights_hash(steered.adapters)
    facts |= {"adapter_weights": hashes}
    folder = running.folder(None, is_main=accelerator.is_main_process)
    called = {"class_names": names, "domain_names": images.domain(dataset), "answers": answers}
    report = running.evaluate(methods, stream, folder, accelerator=accelerator, provenance=facts, **called)
    if accelerator.is_main_process:
        folder.finish(report)
        _show(report, f"{Path(model).name}, frozen", running, answers.finish(), [], as_json=as_json)


def _label(source: str, taken: Collection[str]) -> str:
    """The column name of an adapter: the last part of its source, or the whole source if that name is taken."""
    from spear_hf.adapters.names import name_of

    return source if (name := name_of(source)) in taken else name


def _model_facts(name: str, base: Any, class_names: list[str] | None) -> dict[str, Any]:
    """The facts about the model in a report: its name, its fingerprint and the names of its classes."""
    from spear_hf.backbones.fingerprint import fingerprint, weights_hash
    from spear_hf.backbones.head import own_head

    facts = {"model": name, "base": fingerprint(base).to_dict(), "weights": weights_hash(base)}
    facts |= {"head": head} if (head := own_head(base).to_dict()) else {}
    return facts if class_names is None else facts | {"class_names": class_names}


def _show(
    report: "Report",
    title: str,
    running: ResumableRunOptions,
    answers: Path,
    adapters: list[Path],
    *,
    as_json: bool,
) -> None:
    """Write the page, and print the table of a run and its paths, or the whole report as JSON."""
    page = _page(running.output) if running.page else None
    if as_json:
        paths = {"output": running.output, "predictions": answers, "page": page}
        found = {name: None if path is None else str(path) for name, path in paths.items()}
        print_json(report.to_dict() | found | {"adapters": [str(path) for path in adapters]})
        return
    print_table(report.table(title))
    if (only := report.provenance["answers"]) != "all classes of the model":
        print(f"answers and errors over {only} (--restrict-classes)")
    for method, steps in report.adaptation.items():
        print(f"{method} steps: " + ", ".join(f"{count} {why}" for why, count in steps.items()))
    for note in report.provenance.get("notes", ()):
        print(in_flags(note, [field.name for field in fields(ImageOptions)]))
    if left_out := report.provenance.get("left_out", ()):
        print(f"left out {len(left_out)} images that could not be read: {first_of(left_out, 5)}")
    print(f"answers  {answers}, {report.images} images")
    for path in adapters:
        print(f"adapter  {path}")
    print(f"report   {running.output / 'report.json'}" + ("" if page is None else f" and {page.name}"))


def _page(output: Path) -> Path | None:
    """The page of a run; None without matplotlib."""
    from spear_hf.errors import ConfigError
    from spear_hf.evaluation.html import write_page

    try:
        return write_page(output)
    except ConfigError as error:
        print(f"no page: {error}", file=sys.stderr)
        return None
