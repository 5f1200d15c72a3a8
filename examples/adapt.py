"""Watch a frozen classifier get better on corrupted images, batch by batch.

    accelerate launch examples/adapt.py                              # embedded model and images, offline
    accelerate launch examples/adapt.py --model examples/fashion_mnist/vit --batch-size 256
    accelerate launch examples/adapt.py --model timm/resnet50.tv_in1k --dataset /data/val --corruptions fog,snow
    accelerate launch examples/adapt.py --protocol continual --learning-rate 0.003 --boundaries 0

Three methods predict the same stream: the source model; the source model with alpha-mixed batch statistics and no
learning (if it has BatchNorm); and SPeaR. At the end an adapter is saved for each corruption, and one of them is loaded
into a fresh copy of the base: both must give the same logits. `spear-hf adapt` does the same with checkpoints.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from embedded import IMAGES, MODEL, DatasetOption, ModelOption, with_preset
from rich.console import Console

from spear_hf import Report, Spear, SpearConfig, SpearError, SpearModel, get_spear_model, load_processor
from spear_hf.backbones.fingerprint import fingerprint
from spear_hf.cli import ImageOptions, RunOptions, WeightOptions, expanded, script
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.preservation import baselines
from spear_hf.evaluation.run_folder import RunFolder
from spear_hf.utils.launch import end_trackers

FIRST_1024 = ImageOptions(corruptions="all", limit=1024, shuffle=True)


@expanded()
def main(
    weights: WeightOptions,
    running: RunOptions,
    config: SpearConfig,
    images: ImageOptions = FIRST_1024,
    model: ModelOption = MODEL,
    dataset: DatasetOption = IMAGES,
) -> None:
    accelerator = running.accelerator()
    is_main, console = accelerator.is_main_process, Console(quiet=not accelerator.is_main_process, highlight=False)
    base = weights.load(model)
    stream = with_preset(images, dataset).stream(dataset, base)
    pristine = copy.deepcopy(base.to(accelerator.device))
    steered = get_spear_model(base, config)
    console.print(f"{type(base).__name__} on {accelerator.device}, {accelerator.num_processes} process(es)")
    for b in steered.boundaries:
        mark = "[bold]RSP[/bold]" if b.depth in steered.rsps() else "   "
        console.print(f"  {mark} depth {b.depth}: {b.module} ({b.where}), {b.channels} channels")
    if is_main:
        steered.print_trainable_parameters()

    methods = baselines(steered, pristine, accelerator=accelerator) | {"SPeaR": Spear(steered, accelerator=accelerator)}
    facts = {"model": model, "base": fingerprint(pristine).to_dict(), "config": config.to_dict()}
    facts = {"processor": load_processor(pristine).describe()} | facts
    folder = RunFolder(running.output, steered, is_main=is_main)
    report = evaluate(methods, stream, on_batch=folder.append, accelerator=accelerator, provenance=facts)
    end_trackers(accelerator)
    if is_main:
        title = f"{Path(model).name}, severity {images.severity:g}, batch {images.batch_size}, {images.protocol}"
        console.print(report.table(title), highlight=True)
        steps = report.adaptation.get("SPeaR", {})
        console.print("SPeaR steps: " + ", ".join(f"{count} {why}" for why, count in steps.items()))
        adapters = folder.finish(report)
        name = check_an_adapter(report, steered, folder, pristine, stream)
        console.print(f"saved {folder.folder}: report.json, steps.jsonl and {len(adapters)} adapters")
        console.print(f"{name} loaded again into a fresh base: its logits are identical")
        console.print(f"a page with figures: spear-hf report {folder.folder}")


def check_an_adapter(report: Report, model: SpearModel, folder: RunFolder, pristine: Any, stream: Any) -> str:
    """The name of the adapter with the largest gain, after a check that it predicts what the learned model predicts."""
    best = max(report.rows, key=lambda row: row.error["source"] - row.error["SPeaR"]).domain
    model.restore(folder.learned[best])
    loaded = SpearModel.from_pretrained(pristine, folder.adapter(best))
    x = next(iter(stream))["pixel_values"].to(next(pristine.parameters()).device)
    with torch.no_grad():
        learned, again = (getattr(out, "logits", out) for out in (model(x), loaded(x)))
    if not torch.equal(learned, again):
        raise SpearError(f"the adapter loaded from {folder.adapter(best)} predicts something else; please report this")
    return folder.adapter(best).name


app = script(main, __doc__)

if __name__ == "__main__":
    app()
