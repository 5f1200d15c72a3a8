"""Compare every method with SPeaR on the same stream: error, calibration, learned numbers, time and memory.

    python examples/compare_methods.py                                        # embedded ResNet and images, offline
    python examples/compare_methods.py --methods source,tent,spear --batch-sizes 4,16,256 --protocol continual
    python examples/compare_methods.py --model timm/resnet50.tv_in1k --dataset /data/ImageNet-C --limit 5000
    python examples/compare_methods.py --settings tuned.json                  # hyper-parameters, see below

Every cell (a method at a batch size) runs alone on its own copy of the model, over the same images in the same order,
and is kept in the output folder: an interrupted run continues with the next cell. Corrupted images are made once and
kept in `--cache`. A folder of corrupted images has no clean ones: name some with `--source-dataset` for the methods
that need them (EATA). `--settings` is a JSON file of hyper-parameters by label, chosen on other images:

    {"tent": {"learning_rate": 0.00025}, "spear": {"tau": 0.1}, "SPeaR, alpha 1": {"method": "spear", "alpha": 1.0}}
"""

import sys
from pathlib import Path

from embedded import IMAGES, MODEL, DatasetOption, ModelOption, with_preset
from rich.console import Console

from spear_hf.cli import ComparisonOptions, ImageOptions, RunOptions, WeightOptions, expanded, script
from spear_hf.evaluation.plots import plot_parameters

ALL = ComparisonOptions(methods="all", cache=Path("runs/cache"))
FIRST_512 = ImageOptions(corruptions="all", limit=512, shuffle=True, batch_size=16)
RUN = RunOptions(output=Path("runs/compare"))


@expanded(without=("log_with",))
def main(
    weights: WeightOptions,
    comparing: ComparisonOptions = ALL,
    running: RunOptions = RUN,
    images: ImageOptions = FIRST_512,
    model: ModelOption = MODEL,
    dataset: DatasetOption = IMAGES,
) -> None:
    comparison = comparing.compare(model, dataset, weights, running, with_preset(images, dataset))
    if comparison is None:  # not the main process
        return
    name = f"{Path(model).name}, severity {images.severity:g}, {images.protocol}"
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)  # a file has no width of its own
    for table in comparison.tables(name):
        console.print(table, highlight=True)
    for line in comparison.refusal_lines():
        console.print(line, markup=False)
    figure = plot_parameters(comparison, running.output / "figure.png", name)
    console.print(f"saved {running.output / 'comparison.json'}, {figure}")


app = script(main, __doc__)

if __name__ == "__main__":
    app()
