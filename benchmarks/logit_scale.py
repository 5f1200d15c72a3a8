"""What a network learns when its logits are multiplied, and when they are cosines times 100, as CLIP's are.

    python benchmarks/logit_scale.py [--networks resnet vit] [--batch-size 16] [--limit 512]

The embedded networks, as they are and with their logits multiplied; and with a head of cosines to the mean feature of
each class on clean images ("cosines"), or to these means moved together ("close cosines"), as CLIP's texts are. A cell
is the mean error over three corruptions at severity 5, reset before each.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf import Spear, SpearConfig, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.learning.objective import normalized_entropy
from spear_hf.utils.batch import logits_of

EMBEDDED = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist"
CORRUPTIONS = ("fog", "gaussian_noise", "contrast")
MOVED = 4.0  # how far all class means are moved in one direction: cosines are then near each other


class Multiplied(nn.Module):
    """The logits of a network, multiplied."""

    def __init__(self, net: Any, by: float) -> None:
        super().__init__()
        self.net, self.by, self.config = net, by, net.config

    main_input_name = "pixel_values"

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.by * self.net(pixel_values).logits


class Cosines(Multiplied):
    """Cosines of a network's features to one direction a class, multiplied."""

    def __init__(self, net: Any, by: float, directions: Tensor) -> None:
        super().__init__(net, by)
        self.register_buffer("directions", directions)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.by * features(self.net, pixel_values) @ self.directions.T


def features(net: Any, x: Tensor) -> Tensor:
    """(B, D) of length 1, what the classifier of an embedded network reads."""
    found = net.resnet(x).pooler_output.flatten(1) if hasattr(net, "resnet") else net.vit(x).last_hidden_state[:, 0]
    return F.normalize(found, dim=-1)


def batches(net: Any, corruption: str, limit: int, batch_size: int) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"preset": "cifar", "shuffle": True, "processor": load_processor(net)}
    source = str(EMBEDDED / "test.parquet")
    return list(load_stream(source, corruptions=corruption, limit=limit, batch_size=batch_size, **options))


@torch.no_grad()
def class_means(net: Any) -> Tensor:
    """(K, D) of length 1, the mean feature of each class on clean images."""
    rows = [(features(net, batch["pixel_values"]), batch["labels"]) for batch in batches(net, "clean", 2000, 250)]
    found, labels = torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])
    return F.normalize(torch.stack([found[labels == k].mean(0) for k in range(10)]), dim=-1)


def heads(name: str) -> dict[str, Callable[[], nn.Module]]:
    """What is measured -> a new network."""

    def net() -> Any:
        return load_base_model(str(EMBEDDED / name)).eval()

    means = class_means(net())
    aside = F.normalize(torch.randn(means.shape[1], generator=torch.Generator().manual_seed(1)), dim=0)
    close = F.normalize(means + MOVED * aside, dim=-1)
    found: dict[str, Callable[[], nn.Module]] = {
        f"logits x {by}": lambda by=by: Multiplied(net(), by) for by in (1, 10, 30)
    }
    return found | {
        "cosines x 100": lambda: Cosines(net(), 100.0, means),
        "close cosines x 100": lambda: Cosines(net(), 100.0, close),
    }


def error(make: Callable[[], nn.Module], config: SpearConfig | None, streams: list[Any]) -> tuple[float, float]:
    """Mean error in %, and mean normalised entropy; None is the source."""
    wrong, count, entropy = 0, 0, 0.0
    for stream in streams:
        net = make().eval()
        tta = None if config is None else Spear(get_spear_model(net, config))
        for batch in stream:
            with torch.no_grad():
                x = batch["pixel_values"]
                answer = logits_of(net(x)) if tta is None else tta.step(x)
            wrong += int((answer.argmax(1) != batch["labels"]).sum())
            count += len(answer)
            entropy += float(normalized_entropy(answer).sum())
    return 100 * wrong / count, entropy / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet", "vit"])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--limit", type=int, default=512)
    args = parser.parse_args()
    print("| network | head | source | its entropy | `learning_entropy=0` | `learning_entropy=0.2` |")
    print("|---|---|---:|---:|---:|---:|")
    for name in args.networks:
        base = load_base_model(str(EMBEDDED / name))
        streams = [batches(base, corruption, args.limit, args.batch_size) for corruption in CORRUPTIONS]
        for head, make in heads(name).items():
            source, entropy = error(make, None, streams)
            learned = [error(make, SpearConfig(learning_entropy=each), streams)[0] for each in (0.0, 0.2)]
            print(
                f"| {name} | {head} | {source:.1f} | {entropy:.3f} | {learned[0]:.1f} | {learned[1]:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
