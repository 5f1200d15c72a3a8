"""Learn an adapter on a stream, measure it, save it with its card and, if you say where, push it to the Hub.

    python examples/share.py --corruptions fog --output runs/resnet-fog
    python examples/share.py --model examples/fashion_mnist/vit --corruptions contrast --push me/vit-contrast
    python examples/share.py --corruptions all --protocol continual --output runs/resnet-continual

It learns on the first images of a shuffled parquet file and measures on others: once while it learns, and once with
the saved adapter, which learns nothing then, on the same corruptions and on clean images. Run it from the root of the
repository; hub_cards/README.md lists the commands that made the adapters there.
"""

import copy
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import HfArgumentParser

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.adapters.card_metrics import MIXED, CardMetrics
from spear_hf.adapters.upload import push
from spear_hf.baselines import BnAdapt, Source
from spear_hf.evaluation.evaluate import evaluate


def about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ShareArguments:
    """What to learn from, and where it goes."""

    model: str = about("A model folder, a Hub id or a timm name.", "examples/fashion_mnist/resnet")
    data: str = about("A parquet file with images and labels.", "examples/fashion_mnist/test.parquet")
    dataset: str = about("What the card calls those images.", "fashion_mnist")
    corruptions: str = about('One name, or several ("all", "fog,snow") with --protocol continual.', "fog")
    severity: float = about("From 1 to 5.", 5.0)
    preset: str = about('Constants for the image size: "imagenet", "cifar" or "tiny".', "cifar")
    protocol: str = about('"single", or "continual" for one adapter of several corruptions.', "single")
    batch_size: int = about("Images in a batch.", 64)
    learn_images: int = about("Images of each corruption to learn from.", 4096)
    test_images: int = about("Other images to measure the saved adapter on.", 1024)
    seed: int = about("Of the order and of the corruptions.", 0)
    output: str = about("The folder of the adapter.", "runs/adapter")
    push: str | None = about('The Hub repo to push to, "owner/name".', None)
    private: bool = about("Make that repo private.", False)


def main() -> None:
    parser = HfArgumentParser((SpearConfig, ShareArguments), description=__doc__)  # pyright: ignore[reportArgumentType]
    config, run = parser.parse_args_into_dataclasses()
    console = Console()
    base = load_base_model(run.model)
    processor, pristine = load_processor(base), copy.deepcopy(base)
    images = Dataset.from_parquet(run.data)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(run.seed))
    learn, test = order[: run.learn_images], order[run.learn_images :][: run.test_images]

    def stream(ids: torch.Tensor, corruptions: str) -> Any:
        return load_stream(
            images.select(ids.tolist()),
            corruptions=corruptions,
            severity=run.severity,
            protocol=run.protocol,
            batch_size=run.batch_size,
            seed=run.seed,
            processor=processor,
            preset=run.preset,
        )

    model = get_spear_model(base, config)
    sources: dict[str, Any] = {"source": Source(copy.deepcopy(pristine))}
    if config.alpha > 0 and model.has_batch_norms:
        sources[MIXED] = BnAdapt(copy.deepcopy(pristine), config.alpha)
    online = evaluate({**sources, "SPeaR": Spear(model)}, stream(learn, run.corruptions))
    if run.protocol == "single" and len(online.rows) > 1:
        raise SpearError(f"{len(online.rows)} corruptions, each learned from anew; pass one, or --protocol continual")
    frozen = [
        evaluate({**sources, "SPeaR": Source(model)}, stream(test, corruptions))
        for corruptions in (run.corruptions, "clean")
    ]
    for report, title in zip((online, *frozen), ("while it learned", "as saved", "as saved, clean"), strict=True):
        console.print(report.table(f"{run.model}, {title}"))
    results = CardMetrics.from_reports(run.dataset, online, *frozen)
    folder = model.save_pretrained(run.output, results=results, source=run.push or run.output)
    console.print(f"saved {folder}", highlight=False)
    if run.push is not None:
        console.print(f"pushed {push(folder, run.push, private=run.private).commit_url}", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
