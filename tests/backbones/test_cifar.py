from pathlib import Path

import pytest
import timm
import torch

from spear_hf import find_boundaries, load_base_model

EXPECTED = {
    "cifar_resnet26": (
        1_472_554,
        [("stages.0.0", "in", 32), ("stages.0.3", "out", 32), ("stages.1.3", "out", 64), ("stages.2.3", "out", 128)],
    ),
    "cifar_resnext29_32x4d": (
        6_900_132,
        [("stage_1.0", "in", 64), ("stage_1.2", "out", 256), ("stage_2.2", "out", 512), ("stage_3.2", "out", 1024)],
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_timm_makes_the_papers_cifar_backbones(name: str) -> None:
    parameters, boundaries = EXPECTED[name]
    model = load_base_model(name, pretrained=False)
    assert name in timm.list_models("cifar_*")
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert [(b.module, b.where, b.channels) for b in find_boundaries(model)] == boundaries


@pytest.mark.slow
def test_resnet26_reads_published_weights_and_answers_well(shared: Path) -> None:
    from datasets import Dataset

    from spear_hf import load_processor

    model = load_base_model("cifar_resnet26", checkpoint=shared / "weights" / "cifar_resnet26.safetensors")
    rows = Dataset.from_parquet(str(shared / "cifar10" / "test.parquet")).select(range(256)).with_format("numpy")[:]  # pyright: ignore
    with torch.no_grad():
        answers = model(load_processor(model)(list(rows["image"]))).argmax(1)
    assert float((answers != torch.tensor(rows["label"])).float().mean()) < 0.2
