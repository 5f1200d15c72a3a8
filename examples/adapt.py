"""Watch a frozen classifier answer corrupted images better, batch by batch.

    accelerate launch examples/adapt.py                              # embedded model and images, offline
    accelerate launch examples/adapt.py --model examples/fashion_mnist/vit --batch_size 256
    accelerate launch examples/adapt.py --model timm/resnet50.tv_in1k --dataset /data/val --corruptions fog,snow
    accelerate launch examples/adapt.py --protocol continual --learning_rate 0.003 --boundaries 0

Three columns answer the same stream: the source model; the source with alpha-mixed batch statistics and no learning
(for models with BatchNorm); and SPeaR. At the end what each corruption taught is saved as an adapter, and one is loaded
into a fresh copy of the base: both must give the same logits.
"""

import copy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import HfArgumentParser

from spear_hf import Report, Spear, SpearConfig, SpearError, SpearModel, get_spear_model, load_base_model
from spear_hf.backbones.fingerprint import fingerprint
from spear_hf.data.load_stream import load_stream
from spear_hf.data.processor import load_class_names, load_processor
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.preservation import baselines
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.launch import end_trackers, start_accelerator

HERE = Path(__file__).parent
EMBEDDED = {"fashion_mnist": HERE / "fashion_mnist" / "test.parquet"}


def about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class RunArguments:
    """What to run it on."""

    model: str = about("A model folder, a Hub id or a timm name.", str(HERE / "fashion_mnist" / "resnet"))
    revision: str | None = about("The commit, branch or tag of a Hub id.", None)
    checkpoint: str | None = about("A .safetensors state_dict for a timm name without weights.", None)
    dataset: str = about("An embedded name (fashion_mnist), a parquet or folder path, or a Hub id.", "fashion_mnist")
    corruptions: str = about(
        '"all" (the 15), "clean", a group (noise, blur, weather, digital), or names with commas.', "all"
    )
    severity: float = about("From 1 to 5; fractions interpolate the constants.", 5.0)
    preset: str = about('Constants for the image size: "imagenet", "cifar", "tiny"; "auto" goes by the size.', "auto")
    protocol: str = about('"single" forgets before each corruption, "continual" never does.', "single")
    batch_size: int = about("Images in a batch, over all processes.", 64)
    limit: int | None = about("Images of each corruption; 0 takes all there are.", 1024)
    seed: int = about("Of the order and of the corruptions.", 0)
    output: str = about("The folder for report.json and the adapters.", "runs/adapt")
    cpu: bool = about("Stay on the CPU.", False)
    log_with: str | None = about("Trackers that get each batch: tensorboard, trackio, wandb; with commas.", None)


def main() -> None:
    parser = HfArgumentParser((SpearConfig, RunArguments), description=__doc__)  # pyright: ignore[reportArgumentType]
    config, run = parser.parse_args_into_dataclasses()
    accelerator = start_accelerator(cpu=run.cpu, log_with=run.log_with, folder=run.output)
    console = Console(quiet=not accelerator.is_main_process)

    base = load_base_model(run.model, revision=run.revision, checkpoint=run.checkpoint)
    processor = load_processor(base)
    embedded = run.dataset in EMBEDDED
    stream = load_stream(
        str(EMBEDDED.get(run.dataset, run.dataset)),
        corruptions=run.corruptions,
        severity=run.severity,
        protocol=run.protocol,
        batch_size=run.batch_size,
        limit=run.limit or None,
        seed=run.seed,
        processor=processor,
        class_names=load_class_names(base),
        preset="cifar" if embedded and run.preset == "auto" else run.preset,
    )
    base.to(accelerator.device)
    pristine = copy.deepcopy(base)
    model = get_spear_model(base, config)
    console.print(
        f"{type(base).__name__} on {accelerator.device}, {accelerator.num_processes} process(es)", highlight=False
    )
    for b in model.boundaries:
        mark = "[bold]RSP[/bold]" if b.depth in model.rsps() else "   "
        console.print(f"  {mark} depth {b.depth}: {b.module} ({b.where}), {b.channels} channels", highlight=False)
    if accelerator.is_main_process:
        model.print_trainable_parameters()

    methods = baselines(model, pristine, accelerator=accelerator) | {"SPeaR": Spear(model, accelerator=accelerator)}
    facts = {"model": run.model, "base": fingerprint(pristine).to_dict(), "config": config.to_dict()}
    folder = RunFolder(run.output, model, is_main=accelerator.is_main_process)
    report = evaluate(
        methods,
        stream,
        on_batch=folder.append,
        accelerator=accelerator,
        provenance={"processor": processor.describe(), **facts},
    )
    end_trackers(accelerator)
    if accelerator.is_main_process:
        finish(console, report, model, folder, pristine, stream, run)


def finish(
    console: Console,
    report: Report,
    model: SpearModel,
    folder: RunFolder,
    pristine: Any,
    stream: Any,
    run: RunArguments,
) -> None:
    """Print the table, write report and adapters, and show that a saved adapter answers as the one that learned."""
    name = Path(run.model).name
    console.print(report.table(f"{name}, severity {run.severity:g}, batch {run.batch_size}, {run.protocol}"))
    steps = report.adaptation.get("SPeaR", {})
    console.print("SPeaR steps: " + ", ".join(f"{count} {why}" for why, count in steps.items()), highlight=False)
    adapters = folder.finish(report)

    best = max(report.rows, key=lambda row: row.error["source"] - row.error["SPeaR"]).domain
    model.restore(folder.learned[best])
    loaded = SpearModel.from_pretrained(pristine, folder.adapter(best))
    x = next(iter(stream))["pixel_values"].to(next(pristine.parameters()).device)
    with torch.no_grad(), model.stream_statistics.set_aside():
        before, after = (getattr(out, "logits", out) for out in (model(x), loaded(x)))
    if not torch.equal(before, after):
        raise SpearError(f"the adapter loaded from {folder.adapter(best)} answers differently; please report this")
    console.print(f"saved {folder.folder}: report.json, steps.jsonl and {len(adapters)} adapters", highlight=False)
    console.print(
        f"{folder.adapter(best).name} loaded again into a fresh base: its logits are identical", highlight=False
    )
    console.print(f"a page with figures: spear-hf report {folder.folder}", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
