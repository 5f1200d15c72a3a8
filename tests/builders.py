"""What tests share: small real models, streams and batches, made from a seed, and the command in this process."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import timm
import torch
import typer
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from spear_hf import Boundary, Spear, SpearConfig, SpearModel, find_boundaries, get_spear_model
from spear_hf.baselines import METHODS
from spear_hf.baselines.augmentation import Normalization
from spear_hf.baselines.losses import Batch
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.evaluation.report import BatchRecord, DomainResult, Report
from spear_hf.learning.record import StepRecord

if TYPE_CHECKING:
    from datasets import Dataset

    from spear_hf.data.image_stream import ImageStream


class TinyNet(nn.Module):
    """A stem and three stages of a residual block with BatchNorm, ReLU and dropout; 32x32 images, 10 classes."""

    default_cfg: ClassVar = {"input_size": (3, 32, 32)}  # so that it is not probed with 224x224

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = nn.Sequential(TinyBlock(8, 8, 1))
        self.layer2 = nn.Sequential(TinyBlock(8, 16, 2))
        self.layer3 = nn.Sequential(TinyBlock(16, 24, 2))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(self.dropout(x.mean((2, 3))))


class TwoStages(nn.Module):
    """A stem and two residual blocks with BatchNorm, ReLU and dropout: what a method needs at least; 10 classes."""

    default_cfg: ClassVar = {"input_size": (3, 16, 16)}

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layers = nn.Sequential(TinyBlock(8, 8, 1), TinyBlock(8, 16, 2))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.layers(self.stem(x)).mean((2, 3))))


class TinyBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if (inputs, stride) != (outputs, 1) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)) + self.skip(x))


def tiny_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2, image_size=32, patch_size=8
    )
    return ViTForImageClassification(config).eval()


def tiny_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=5)
    return ResNetForImageClassification(config).eval()


_BOUNDARIES: dict[tuple[Any, ...], list[Boundary]] = {}


def steered(net: nn.Module, config: SpearConfig | None = None, *, adapter_name: str = "default") -> SpearModel:
    """`get_spear_model`, but the boundaries of a TinyNet or TwoStages, slow to find, are found once a session."""
    config = config or SpearConfig()
    if type(net) not in (TinyNet, TwoStages):
        return get_spear_model(net, config, adapter_name=adapter_name)
    key = type(net), config.num_groups, config.stem
    if key not in _BOUNDARIES:
        _BOUNDARIES[key] = find_boundaries(copy.deepcopy(net), config.num_groups, stem=config.stem)
    return SpearModel(net, config, adapter_name=adapter_name, boundaries=_BOUNDARIES[key], probe=False)


def learner(net: nn.Module, config: SpearConfig | None = None, **options: Any) -> Spear:
    """A Spear whose gate is open, on `net`."""
    return Spear(steered(net, config or SpearConfig.paper(tau=0.0, hard_gate=False)), **options)


def check_resume(tta: Any, batches: Sequence[Tensor], split: int) -> None:
    """The first `split` batches again after a reset, and the others after a load, must give the same bits."""
    first = [tta.step(x) for x in batches[:split]]
    state = tta.state_dict()
    rest = [tta.step(x) for x in batches[split:]]
    tta.reset()
    assert all(torch.equal(tta.step(x), a) for x, a in zip(batches[:split], first, strict=True))
    tta.reset()
    tta.load_state_dict(state)
    assert all(torch.equal(tta.step(x), a) for x, a in zip(batches[split:], rest, strict=True))


class TinyStream:
    """Batches of the given global sizes for each domain; rank r of W takes its slice of each."""

    def __init__(self, sizes: tuple[int, ...] = (16, 5, 1), protocol: str = "single") -> None:
        self.sizes = sizes
        self.protocol = protocol
        self.rank, self.count = 0, 1
        self.next = 0
        self.stop_after: int | None = None

    def shard(self, rank: int, count: int) -> "TinyStream":
        shard = TinyStream(self.sizes, self.protocol)
        shard.rank, shard.count, shard.next = rank, count, self.next
        return shard

    def __len__(self) -> int:
        return 2 * len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.next, len(self)):
            self.next = number + 1
            yield self.batch(number)

    def batch(self, number: int) -> dict[str, Any]:
        domain, place = divmod(number, len(self.sizes))
        images, labels = images_and_labels(number, self.sizes[place])
        part = torch.tensor_split(torch.arange(len(labels)), self.count)[self.rank]
        return {
            "pixel_values": images[part],
            "labels": labels[part],
            "domain": f"domain{domain}",
            "is_domain_start": place == 0,
        }

    def describe(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes), "protocol": self.protocol}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Killed(Exception):
    pass


class KilledStream(TinyStream):
    """Dies as it is asked for batch 4, in the second domain."""

    def batch(self, number: int) -> dict[str, Any]:
        if number == 4:
            raise Killed
        return super().batch(number)


def images_and_labels(seed: int, size: int) -> tuple[Tensor, Tensor]:
    """(size, 3, 16, 16) away from what the running statistics of a TinyNet saw, and labels of its ten classes."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, 16, 16, generator=generator) * 1.5 - 0.5
    return images, torch.randint(10, (size,), generator=generator)


NORMALIZED: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
NORMALIZATION = Normalization(**NORMALIZED)
OPEN = {"threshold": 1.0, "margin": 1.0}  # a random network is too unsure for the published thresholds

NEEDED: dict[str, dict[str, Any]] = {
    "eta": OPEN,
    "eata": OPEN | {"source_images": torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(3))},
    "sar": {"threshold": 1.0},
    "deyo": {"threshold": 1.0, "margin": -1.0},
    "roid": NORMALIZED,
    "cmf": NORMALIZED,
    "cotta": NORMALIZED | {"views": 2, "confidence": 0.0},
    "rotta": NORMALIZED | {"capacity": 8, "every": 8},
    "spear": {"tau": 0.0},
}
"""What a method needs to be made, and to learn, on a small random network."""

LEARNERS = [name for name in METHODS if name not in ("source", "bn_adapt")]


def made(name: str, net: nn.Module, **options: Any) -> Any:
    """A row of METHODS on `net`, where it learns in each step."""
    rates: dict[str, Any] = {"learning_rate": 0.01} if name in LEARNERS else {}
    return METHODS[name](net, **(NEEDED.get(name, {}) | rates | options))


def logits_of_probabilities(p: list[list[float]]) -> Tensor:
    """Logits whose softmax is p."""
    return torch.tensor(p).log()


def batch_of(
    logits: Tensor,
    x: Tensor | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
    learned: ParameterSet | None = None,
    nominal_batch_size: int | None = None,
) -> Batch:
    """A batch with these logits."""
    images = torch.zeros(len(logits), 3, 8, 8) if x is None else x
    learned = learned or ParameterSet([nn.Parameter(torch.zeros(1))])
    size = nominal_batch_size or len(logits)
    return Batch(images, logits, forward or (lambda _: logits), learned, size, logits.detach())


def invoked(app: typer.Typer, *words: str | Path) -> Any:
    """The result of a command line in this process: exit_code, stdout, stderr; an unexpected exception is raised."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def spear_hf(*words: str | Path) -> Any:
    """The result of `spear-hf WORDS` in this process."""
    from spear_hf.cli import app

    return invoked(app, *words)


def printed(*words: str | Path) -> Any:
    """What `spear-hf WORDS --json` prints."""
    done = spear_hf(*words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def batch_record(number: int, domain: str, wrong: int, *, adapted: bool = True) -> BatchRecord:
    """Eight images, all wrong by the source; entropy 0.1 for each of SPeaR's wrong answers."""
    step = StepRecord(number, 8, wrong / 10, adapted, None if adapted else "x", None, None, None, None, 0.1, 0.2)
    deviations = {"0": (0.1 * number, 0.2), "2": (0.3, 0.4 * number)}
    return BatchRecord(number, domain, 8, {"source": 8, "SPeaR": wrong}, {0: 6, 3: 2}, {0: 4, 1: 4}, step, deviations)


def a_run() -> tuple[Report, list[BatchRecord]]:
    """The report and the batches of a run over two domains."""
    rows = [
        DomainResult("fog/5", 16, {"source": 60.0, "SPeaR": 30.0}),
        DomainResult("snow/5", 8, {"source": 20.0, "SPeaR": 40.0}),
    ]
    report = Report(rows, ["source", "SPeaR"], {"config": {"tau": 0.25}}, parameters={"source": 0, "SPeaR": 96})
    steps = [batch_record(0, "fog/5", 4), batch_record(1, "fog/5", 2), batch_record(2, "snow/5", 6, adapted=False)]
    return report, steps


def hooks_of(model: nn.Module) -> int:
    """How many forward hooks and pre-hooks there are."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def a_vit() -> nn.Module:
    """timm's test_vit: 160 x 160 images, 10 classes, no BatchNorm."""
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=10).eval()


def pictures(n: int, side: int = 32, seed: int = 0) -> np.ndarray:
    """(n, side, side, 3) uint8 random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def picture_rows(n: int = 12, seed: int = 0, **columns: Any) -> "Dataset":
    """`pictures` as a Dataset, with labels 0, 1, 2, 0, 1, 2, ... and further columns."""
    from datasets import Dataset

    images = [Image.fromarray(image) for image in pictures(n, seed=seed)]
    return Dataset.from_dict({"image": images, "label": [i % 3 for i in range(n)], **columns})


def write_pictures(folder: Path, n: int, side: int = 32, suffix: str = "png") -> Path:
    """A new folder with n image files of random pixels."""
    folder.mkdir(parents=True)
    for i, image in enumerate(pictures(n, side)):
        Image.fromarray(image).save(folder / f"{i:02d}.{suffix}")
    return folder


def shuffled_stream(source: Any, **options: Any) -> "ImageStream":
    """A stream as a benchmark takes it: all corruptions unless told otherwise, and a seeded order."""
    from spear_hf.data.load_stream import load_stream

    return load_stream(source, **{"corruptions": "all", "shuffle": True} | options)


def same_batch(a: Any, b: Any) -> bool:
    """Whether two batches of a stream are equal to the bit."""
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key] for key in a
    )


def batch_digest(batch: Any) -> str:
    """A hash of the pixels, the ids and the domain of a batch of a stream."""
    content = batch["pixel_values"].numpy().tobytes() + batch["index"].numpy().tobytes() + batch["domain"].encode()
    return sha256(content).hexdigest()
