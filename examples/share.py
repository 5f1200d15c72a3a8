"""Learn an adapter on a stream, measure it, save it with its card, and push it to the Hub with `--push`.

    python examples/share.py --corruptions fog --output runs/resnet-fog
    python examples/share.py --model examples/fashion_mnist/vit --corruptions contrast --push me/vit-contrast
    python examples/share.py --corruptions all --protocol continual --output runs/resnet-continual

SPeaR learns on the first images of a shuffled parquet file. It is measured twice: while it learns, and as the saved
adapter, which does not learn, on other images with the same corruptions and without. Run it from the root of the
repository; hub_cards/README.md lists the commands that made the adapters there.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from embedded import IMAGES, ModelOption
from rich.console import Console

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_base_model
from spear_hf.adapters.card_metrics import MIXED, CardMetrics
from spear_hf.adapters.upload import push as push_to_hub
from spear_hf.baselines import BnAdapt, Source
from spear_hf.cli import ImageOptions, expanded, script
from spear_hf.evaluation.evaluate import evaluate

FOG = ImageOptions(corruptions="fog", preset="cifar", shuffle=True)


@expanded(without=("limit", "split", "num_workers"))
def main(
    config: SpearConfig,
    images: ImageOptions = FOG,
    model: ModelOption = "examples/fashion_mnist/resnet",
    dataset: Annotated[str, typer.Option(help="A parquet file with images and labels.")] = IMAGES,
    dataset_name: Annotated[str, typer.Option(help="The name of these images on the card.")] = "fashion_mnist",
    learn_images: Annotated[int, typer.Option(help="Images of each corruption to learn from.")] = 4096,
    test_images: Annotated[int, typer.Option(help="Other images to measure the saved adapter on.")] = 1024,
    output: Annotated[Path, typer.Option(help="The folder of the adapter.")] = Path("runs/adapter"),
    push: Annotated[str | None, typer.Option(help='The Hub repo to push to, "owner/name".')] = None,
    private: Annotated[bool, typer.Option("--private", help="Make that repo private.")] = False,
) -> None:
    console = Console(highlight=False)
    base = load_base_model(model)
    pristine, rows = copy.deepcopy(base), Dataset.from_parquet(dataset)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(images.seed)).tolist()
    learn, test = rows.select(order[:learn_images]), rows.select(order[learn_images:][:test_images])

    steered = get_spear_model(base, config)
    sources: dict[str, Any] = {"source": Source(copy.deepcopy(pristine))}
    if config.alpha > 0 and steered.has_batch_norms:
        sources[MIXED] = BnAdapt(copy.deepcopy(pristine), config.alpha)
    online = evaluate({**sources, "SPeaR": Spear(steered)}, images.stream(learn, pristine))
    if images.protocol == "single" and len(online.rows) > 1:
        raise SpearError(f"{len(online.rows)} corruptions, each learned alone; pass one, or --protocol continual")
    frozen = [
        evaluate({**sources, "SPeaR": Source(steered)}, options.stream(test, pristine))
        for options in (images, replace(images, corruptions="clean"))
    ]
    for report, title in zip((online, *frozen), ("while it learned", "as saved", "as saved, clean"), strict=True):
        console.print(report.table(f"{model}, {title}"), highlight=True)
    results = CardMetrics.from_reports(dataset_name, online, *frozen)
    folder = steered.save_pretrained(output, results=results, source=push or str(output))
    console.print(f"saved {folder}")
    if push is not None:
        console.print(f"pushed {push_to_hub(folder, push, private=private).commit_url}")


app = script(main, __doc__)

if __name__ == "__main__":
    app()
