"""Not tried here.

The machines that these tests ran on have no GPU. On one that has, `python -m pytest -m gpu tests/support` tries these
rows, and `python benchmarks/compiled.py` adds `mode="reduce-overhead"` to its table. Python 3.14 was not at hand
either: `.ci/run` with it as `python3` runs all tests.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spear_hf import Spear, SpearConfig
from tests.builders import TwoStages, steered
from tests.support.quantized import bitsandbytes_net, learns_and_comes_back
from tests.support.table import untried

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def answers_alike(tta: Spear, plain: Spear, count: int = 6) -> None:
    """Over several steps, up to the rounding of a GPU."""
    for _ in range(count):
        x = torch.randn(8, 3, 16, 16)
        torch.testing.assert_close(tta.step(x.cuda()).cpu(), plain.step(x), rtol=1e-2, atol=1e-2)


def pair() -> tuple[TwoStages, Spear]:
    """A network for the GPU, and a learner on a copy of it on the CPU."""
    net = TwoStages().eval()
    return net, Spear(steered(copy.deepcopy(net), SpearConfig(tau=0.0)))


@untried("a step on a GPU answers as on a CPU")
def test_a_step_on_a_gpu() -> None:
    net, plain = pair()
    answers_alike(Spear(steered(net.cuda(), SpearConfig(tau=0.0))), plain)


@untried('`Spear(torch.compile(model, fullgraph=True, mode="reduce-overhead"))`: CUDA graphs')
def test_cuda_graphs() -> None:
    net, plain = pair()
    model = steered(net.cuda(), SpearConfig(tau=0.0))
    answers_alike(Spear(torch.compile(model, fullgraph=True, dynamic=False, mode="reduce-overhead")), plain)


@untried("accelerate's `cpu_offload` to a GPU")
def test_cpu_offload_to_a_gpu() -> None:
    from accelerate import cpu_offload

    net, plain = pair()
    cpu_offload(net, execution_device=torch.device("cuda"))
    answers_alike(Spear(steered(net, SpearConfig(tau=0.0))), plain)


@untried("bitsandbytes, `load_in_8bit=True` and `load_in_4bit=True`, on a GPU")
@pytest.mark.parametrize("options", [{"load_in_8bit": True}, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}])
def test_bitsandbytes_on_a_gpu(options: dict[str, object], tmp_path: Path) -> None:
    images: Tensor = torch.randn(8, 3, 32, 32, device="cuda")
    net, again = (bitsandbytes_net(tmp_path / "vit", "cuda", **options) for _ in range(2))
    learns_and_comes_back(net, again, images, tmp_path)
