"""Small real models and images, made from a seed; nothing here touches the network."""

import copy
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.hub_server import LoopbackHub

gc.disable()  # until all is imported
gc.set_threshold(50_000, 20)
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

OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
"""The environment of a process that runs this checkout without a network."""

from tests.builders import TinyNet  # noqa: E402  imports the package, which may import huggingface_hub


def pytest_collection_finish() -> None:
    """What was imported lasts to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def drawn_net() -> tuple[nn.Module, Tensor]:
    """A TinyNet with running statistics of its own that gives many classes, and the generator's state after that."""
    torch.manual_seed(0)
    model = TinyNet()
    for _ in range(3):
        model(torch.randn(16, 3, 32, 32) * 2 + 1)
    generator = torch.get_rng_state()
    with torch.no_grad():  # untrained, it would give nearly every image one class
        seen = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(7)) * 1.5 - 0.5
        model.eval().fc.bias -= model(seen).mean(0)
    return model, generator


@pytest.fixture
def net(drawn_net: tuple[nn.Module, Tensor]) -> nn.Module:
    """A copy of the TinyNet of this session."""
    model, generator = drawn_net
    torch.set_rng_state(generator)
    return copy.deepcopy(model)


@pytest.fixture
def images() -> Tensor:
    """(16, 3, 16, 16), away from what the running statistics of `net` saw."""
    return torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 1.5 - 0.5


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


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, embedded: Path) -> Path:
    """The first 64 embedded test images, which are faster to open than all 10,000."""
    from pyarrow import parquet

    path = tmp_path_factory.mktemp("photos") / "photos.parquet"
    parquet.write_table(parquet.read_table(embedded / "test.parquet").slice(0, 64), path)
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """An empty Hub and an empty cache; the user is "me"."""
    HUB.clear()
    shutil.rmtree(Path(_HF_HOME.name) / "hub", ignore_errors=True)
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    yield HUB
    HUB.clear()
