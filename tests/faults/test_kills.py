"""Kills at random moments of each kind of writing; docs/faults.md lists how many, and what held."""

import copy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from huggingface_hub.constants import HF_HUB_CACHE
from torch import nn

from spear_hf import SpearConfig, SpearModel, load_stream
from spear_hf.adapters.card_metrics import CardMetrics, CardRow
from spear_hf.adapters.download import pull
from spear_hf.data.export import write_corrupted
from spear_hf.learning.streams import Streams
from spear_hf.utils.files import TEMPORARY
from spear_hf.utils.folders import JOURNAL, settle
from tests.builders import TwoStages, learner, steered
from tests.evaluation.test_run_folder import Gradual, run
from tests.faults.kills import killed_at_random
from tests.hub_server import LoopbackHub

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(TEMPORARY) or path.name == JOURNAL]


def learned(alpha: float) -> SpearModel:
    torch.manual_seed(0)
    model = steered(TwoStages().eval(), SpearConfig(alpha=alpha))
    with torch.no_grad():
        for parameter in model.adapter_parameters():
            parameter.add_(alpha)
    return model


@pytest.mark.parametrize("way", ["exchange", "journal"])
def test_an_adapter_that_is_saved_over_is_the_old_one_or_the_new_one(tmp_path: Path, way: str) -> None:
    models = learned(0.25), learned(0.5)
    results = [CardMetrics("photos", online=(CardRow(f"fog/{i}", 8, 40.0, 30.0),)) for i in (1, 2)]
    whole = []
    for model, result in zip(models, results, strict=True):
        whole.append(files(model.save_pretrained(tmp_path / "whole", results=result)))
    folder = tmp_path / "fog"
    models[0].save_pretrained(folder, results=results[0])
    if way == "journal":
        (folder / "inner").mkdir()

    def save() -> None:
        for i in (1, 0, 1, 0):
            models[i].save_pretrained(folder, results=results[i])

    def check() -> None:
        if way == "journal":  # every reader of adapters does this
            settle(folder)
            shutil.rmtree(next(folder.glob(f"*{TEMPORARY}"), folder / "none"), ignore_errors=True)
        assert files(folder) in whole

    killed_at_random(save, check)
    save()
    assert leftovers(tmp_path) == []


def test_an_adapter_that_is_pulled_over_is_the_old_one_or_the_new_one(hub: LoopbackHub, tmp_path: Path) -> None:
    whole, commits = [], []
    for alpha in (0.25, 0.5):
        result = CardMetrics("photos", online=(CardRow(f"fog/{alpha}", 8, 40.0, 30.0),))
        whole.append(files(learned(alpha).save_pretrained(tmp_path / "whole", results=result)))
        commits.append(hub.put("me/fog", whole[-1]))
    folder, cleared = tmp_path / "fog", []

    def pull_both() -> None:
        for commit in commits:
            pull("me/fog", folder, revision=commit)

    def check() -> None:
        assert not folder.exists() or files(folder) in whole
        cleared.append(len(cleared) % 2 == 0)
        if cleared[-1]:  # the next child downloads; the others find what killed ones left in the cache
            shutil.rmtree(HF_HUB_CACHE, ignore_errors=True)

    killed_at_random(pull_both, check, kills=40)
    pull_both()
    assert files(folder) == whole[-1]
    assert leftovers(tmp_path) == []


def test_an_export_is_whole_or_not_there_and_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"image": [np.full((16, 16, 3), i, np.uint8) for i in range(6)]})
    stream = load_stream(rows, corruptions="contrast, brightness", preset="cifar")
    target = tmp_path / "copies" / "c"

    def export() -> None:
        write_corrupted(stream, target, layout="imagefolder", progress=False)

    export()
    whole = files(target)
    shutil.rmtree(target)

    def check() -> None:
        if target.exists():
            assert files(target) == whole
            shutil.rmtree(target)

    killed_at_random(export, check)
    export()
    assert leftovers(tmp_path) == []


def test_the_states_of_evicted_streams_are_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = TwoStages().eval()
    config = SpearConfig(tau=0.0, memory_images=16)
    images = torch.randn(4, 3, 16, 16)

    def evict() -> None:
        tta = learner(copy.deepcopy(net), config, max_streams_in_memory=1, streams_folder=tmp_path / "streams")
        for name in ("a", "b", "a", "b"):
            tta.step(images, streams=name)

    def check() -> None:
        found = Streams(fresh._new_state, folder=tmp_path / "streams")  # warns, and so fails, about a file that is torn
        assert all(found[name].num_steps > 0 for name in found)
        assert leftovers(tmp_path) == []

    fresh = learner(copy.deepcopy(net), config)
    killed_at_random(evict, check)


def test_a_killed_run_goes_on_to_the_bits_of_an_unbroken_one(net: nn.Module, tmp_path: Path) -> None:
    run(net, tmp_path / "whole", Gradual())
    kept = ("steps.jsonl", "adapters/")
    whole = {name: data for name, data in files(tmp_path / "whole").items() if name.startswith(kept)}
    folder, finished = tmp_path / "run", []

    def check() -> None:
        if (folder / "report.json").exists() and not leftovers(folder):
            now = {name: data for name, data in files(folder).items() if name.startswith(kept)}
            if len(now) == len(whole):  # the kill was after the last adapter, or the run has ended
                assert now == whole
                finished.append(True)
                shutil.rmtree(folder)

    killed_at_random(lambda: run(net, folder, Gradual(), checkpoint=True, every=1), check)
    run(net, folder, Gradual(), checkpoint=True, every=1)
    check()
    assert finished
    assert not folder.exists()
