"""Small real models and images, made from a seed; nothing here touches the network."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.hub_server import LoopbackHub

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = ROOT / "examples" / "fashion_mnist"

HUB = LoopbackHub()  # up before anything imports huggingface_hub, which reads its environment once
_HF_HOME = tempfile.TemporaryDirectory(prefix="spear-hf-tests-")
for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(name, None)
os.environ |= {
    "HF_ENDPOINT": HUB.url,
    "HF_HOME": _HF_HOME.name,
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


class TinyNet(nn.Module):
    """A stem and three residual stages with BatchNorm, ReLU and dropout; 32x32 images, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = nn.Sequential(TinyBlock(8, 8, 1), TinyBlock(8, 8, 1))
        self.layer2 = nn.Sequential(TinyBlock(8, 16, 2), TinyBlock(16, 16, 1))
        self.layer3 = nn.Sequential(TinyBlock(16, 24, 2), TinyBlock(24, 24, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(self.dropout(x.mean((2, 3))))


class TinyBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if (inputs, stride) != (outputs, 1) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)) + self.skip(x))


@pytest.fixture
def net() -> nn.Module:
    """A TinyNet whose running statistics are not the initial ones."""
    torch.manual_seed(0)
    model = TinyNet()
    for _ in range(3):
        model(torch.randn(16, 3, 32, 32) * 2 + 1)
    return model.eval()


@pytest.fixture
def images() -> Tensor:
    """(16, 3, 32, 32), away from what the running statistics of `net` saw."""
    return torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 1.5 - 0.5


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data and weights; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("SPEAR_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no shared data; set SPEAR_SHARED_DATA to the folder that holds it")
    return folder


@pytest.fixture(scope="session")
def embedded() -> Path:
    """examples/fashion_mnist: the embedded images and models."""
    return EMBEDDED


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """An empty Hub and an empty cache; the user is "me"."""
    HUB.clear()
    shutil.rmtree(Path(_HF_HOME.name) / "hub", ignore_errors=True)
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    yield HUB
    HUB.clear()


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
