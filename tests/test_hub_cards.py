"""The adapters in hub_cards are complete, load, and have the errors that their cards state."""

import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from spear_hf import AutoSpearModel, load_processor, load_stream
from spear_hf.adapters.card import render_card
from spear_hf.adapters.card_metrics import read_metrics
from spear_hf.baselines import Source
from spear_hf.evaluation.evaluate import evaluate
from tests.conftest import EMBEDDED, ROOT

FOLDERS = sorted(path.parent.name for path in (ROOT / "hub_cards").glob("*/adapter_config.json"))


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """hub_cards, relative to the root of the repository: the adapters name their bases relative to it."""
    monkeypatch.chdir(ROOT)
    return Path("hub_cards")


def test_there_are_adapters_of_both_bases() -> None:
    assert len(FOLDERS) >= 4
    assert {name.split("-")[0] for name in FOLDERS} == {"resnet", "vit"}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_card_is_rendered_from_its_files(at_root: Path, name: str) -> None:
    folder = at_root / name
    assert (folder / "README.md").read_text() == render_card(folder, f"hub_cards/{name}")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "metrics.json",
    ]


@pytest.mark.parametrize(
    "name", [n if n.endswith("-fog") else pytest.param(n, marks=pytest.mark.slow) for n in FOLDERS]
)
def test_an_adapter_builds_its_base_and_moves_its_answers(at_root: Path, name: str) -> None:
    model, card = AutoSpearModel.from_pretrained(at_root / name), (at_root / name / "README.md").read_text()
    assert f"({type(model.base_model).__name__}) answer shifted images better" in card
    assert model.verify() > 0.1
    for depth, (rsp,) in model.rsps().items():
        gamma, beta = (rsp.gamma - 1).norm(), rsp.beta.norm()
        assert re.search(rf"^\| {depth} \| .* \| {rsp.channels} \| {gamma:.4f} \| {beta:.4f} \|$", card, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_an_adapter_has_the_error_that_its_card_states(at_root: Path, name: str) -> None:
    folder = at_root / name
    results = read_metrics(folder, (folder / "adapter_model.safetensors").read_bytes())
    assert results is not None
    row = results.frozen[0]
    images = Dataset.from_parquet(str(EMBEDDED / "test.parquet"))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(results.seed))
    ids = order[results.online[0].n :][: row.n]
    model = AutoSpearModel.from_pretrained(folder)
    stream = load_stream(
        images.select(ids.tolist()),
        corruptions=row.domain.split("/")[0],
        batch_size=results.batch_size,
        processor=load_processor(model.base_model),
        preset="cifar",
        shuffle=True,  # as examples/share.py does: which images share a batch is worth a point
    )
    report = evaluate({"SPeaR": Source(model)}, stream, progress=False)
    assert report.rows[0].n == row.n
    assert report.rows[0].error["SPeaR"] == pytest.approx(row.after, abs=0.3)
