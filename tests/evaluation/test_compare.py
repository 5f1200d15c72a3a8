import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.baselines import METHODS, MethodFactory, Source
from spear_hf.errors import CheckpointError, ConfigError, DataError
from spear_hf.evaluation.compare import compare
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.method_spec import MethodSpec, method_specs, published_settings
from spear_hf.learning.record import UNRELIABLE
from tests.builders import Killed, TinyStream

SPEAR = {"tau": 0.0, "boundaries": "all"}
QUIET: dict[str, Any] = {"batch_sizes": (4, 8), "progress": False}


class Stream(TinyStream):
    """Two domains of 8 images, in batches of one size."""

    def __init__(self, batch_size: int, protocol: str = "single") -> None:
        super().__init__((batch_size,) * (8 // batch_size), protocol)

    def describe(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "batch_size": self.sizes[0]}


def contenders() -> dict[str, MethodSpec]:
    return method_specs("source,tent,spear", {"tent": {"learning_rate": 1e-2}, "spear": SPEAR})


Finished = tuple[Comparison, Path, nn.Module]


@pytest.fixture(scope="module")
def finished(drawn_net: tuple[nn.Module, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A comparison with the folder of its cells and its base model, for tests that change none of them."""
    base, folder = copy.deepcopy(drawn_net[0]), tmp_path_factory.mktemp("cells")
    return compare(base, Stream, contenders(), folder=folder, **QUIET), folder, base


def test_every_method_answers_at_every_batch_size_and_the_base_stays(net: nn.Module, finished: Finished) -> None:
    found, _, base = finished
    assert list(found.cells) == [(label, size) for size in (4, 8) for label in ("source", "tent", "spear")]
    assert all(row.n == 8 for size in (4, 8) for row in found.merged(size).rows)
    assert all(list(row.error) == found.labels for size in (4, 8) for row in found.merged(size).rows)
    torch.testing.assert_close(base.state_dict(), net.state_dict(), rtol=0, atol=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in base.modules())


def test_a_cell_does_not_depend_on_what_ran_before_it(net: nn.Module, finished: Finished) -> None:
    alone = compare(net, Stream, {"spear": contenders()["spear"]}, batch_sizes=(8,), progress=False)
    first, second = finished[0].report("spear", 8), alone.report("spear", 8)
    assert first is not None
    assert second is not None
    assert first.rows == second.rows


def test_steps_of_rivals_are_counted_and_their_refusals_named(net: nn.Module) -> None:
    found = compare(net, Stream, method_specs("tent,eta"), batch_sizes=(8,), progress=False)
    tent, eta = found.report("tent", 8), found.report("eta", 8)
    assert tent is not None
    assert tent.adaptation == {"tent": {"adapted": 2}}
    assert eta is not None
    assert eta.adaptation == {"eta": {UNRELIABLE: 2}}  # a random network is too unsure


def test_finished_cells_are_not_run_again(
    net: nn.Module, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, folder, _ = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    built, build = [], MethodSpec.build
    monkeypatch.setattr(MethodSpec, "build", lambda self, *args: built.append(self.method) or build(self, *args))
    (tmp_path / "source-8.json").unlink()
    again = compare(net, Stream, contenders(), folder=tmp_path, **QUIET)
    assert built == ["source"]
    for label in first.labels:
        assert [again.error(label, size) for size in (4, 8)] == [first.error(label, size) for size in (4, 8)]


class KilledComparisonStream(Stream):
    """Dies as it is asked for its last batch."""

    def batch(self, number: int) -> dict[str, Any]:
        if number == len(self) - 1:
            raise Killed
        return super().batch(number)


def test_a_killed_cell_goes_on_from_its_checkpoint_with_the_same_figures(
    net: nn.Module, finished: Finished, tmp_path: Path
) -> None:
    specs, seen = {"spear": contenders()["spear"]}, []

    def run(stream: Any) -> Comparison:
        options = {"folder": tmp_path, "progress": False, "checkpoint_images": 4}
        return compare(net, stream, specs, batch_sizes=[4], on_cell=lambda *cell: seen.append(cell[:2]), **options)

    with pytest.raises(Killed):
        run(KilledComparisonStream)
    assert [path.name for path in tmp_path.iterdir()] == ["spear-4"]
    resumed = run(Stream)
    assert resumed.error("spear", 4) == finished[0].error("spear", 4)
    assert [path.name for path in tmp_path.iterdir()] == ["spear-4.json"]
    assert run(Stream).error("spear", 4) == resumed.error("spear", 4)
    assert seen == [("spear", 4)] * 2


def test_cells_of_another_comparison_are_refused(net: nn.Module, finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished[1], tmp_path, dirs_exist_ok=True)
    other = method_specs("tent", {"tent": {"learning_rate": 1e-4}})
    with pytest.raises(CheckpointError, match=r"tent-4\.json is of another comparison \(settings.*another folder"):
        compare(net, Stream, other, folder=tmp_path, **QUIET)
    (tmp_path / "tent-4.json").write_text("{")
    with pytest.raises(CheckpointError, match="remove that file"):
        compare(net, Stream, contenders(), folder=tmp_path, **QUIET)


def test_streams_that_show_other_images_are_refused(net: nn.Module) -> None:
    def streams(batch_size: int) -> Stream:
        return Stream(batch_size, "single" if batch_size == 4 else "continual")

    with pytest.raises(DataError, match=r"differ \(protocol: 'continual', here 'single'\)"):
        compare(net, streams, contenders(), **QUIET)
    with pytest.raises(ConfigError, match="0 methods at batch sizes"):
        compare(net, Stream, {})


def test_a_method_that_does_not_fit_the_model_is_reported_and_the_others_go_on() -> None:
    bare = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    found = compare(bare, Stream, method_specs("source,tent"), **QUIET)
    assert "has no normalisation layer" in found.refusals()["tent"]
    assert found.report("source", 4) is not None
    assert found.error("tent", 4) != found.error("tent", 4)  # NaN


def test_an_observer_sees_every_step_and_is_heard(net: nn.Module) -> None:
    class Count:
        def __init__(self, method: Any) -> None:
            self.steps: list[str] = []

        def __call__(self, domain: str, record: Any) -> None:
            self.steps.append(domain)

        def facts(self) -> dict[str, Any]:
            return {"steps": self.steps}

    found = compare(net, Stream, {"spear": MethodSpec("spear", SPEAR)}, batch_sizes=[4], observe=Count, progress=False)
    report = found.report("spear", 4)
    assert report is not None
    assert report.provenance["observed"] == {"steps": ["domain0", "domain0", "domain1", "domain1"]}


def test_a_comparison_is_read_back_and_shown(finished: Finished, tmp_path: Path) -> None:
    found = finished[0]
    back = Comparison.from_json(found.to_json(tmp_path / "comparison.json"))
    assert back == Comparison.from_json(back.to_json(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "comparison.json").read_bytes()
    assert back.provenance["contenders"]["spear"]["settings"] == SpearConfig(**SPEAR).to_dict()
    assert back.provenance["contenders"]["tent"]["settings"]["learning_rate"] == 1e-2
    assert back.worst_rise("source", 4) == 0
    assert [len(t.rows) for t in (back.errors(), back.costs(4), back.domains(4))] == [3, 3, 3]


def test_a_method_that_did_not_run_has_a_row_of_dashes(finished: Finished) -> None:
    cells = {("source", 4): finished[0].cells["source", 4], ("sar", 4): "it has no normalisation layer"}
    found = Comparison(cells)
    assert found.refusal_lines() == ["sar did not run: it has no normalisation layer"]
    assert [list(column.cells)[1] for column in found.costs(4).columns] == ["sar", *["-"] * 7]
    assert found.merged(4).methods == ["source"]


def test_several_labels_may_be_of_one_method() -> None:
    found = method_specs("source, alpha 1", {"alpha 1": {"method": "spear", "alpha": 1.0}})
    assert found == {"source": MethodSpec("source"), "alpha 1": MethodSpec("spear", {"alpha": 1.0})}
    everything = method_specs("all", {"alpha 1": {"method": "spear"}})
    assert list(everything) == [*METHODS, "alpha 1"]


def test_variants_of_spear_are_known_by_name() -> None:
    found = method_specs("spear_paper,spear_views")
    assert SpearConfig.from_dict(dict(found["spear_paper"].settings)) == SpearConfig.paper()
    assert method_specs("spear_views", {"spear_views": {"method": "tent"}})["spear_views"].method == "tent"


def test_rivals_can_have_what_was_published() -> None:
    assert published_settings("imagenet")["tent"] == {"optimizer": "sgd", "learning_rate": 2.5e-4, "nesterov": True}
    assert "source" not in published_settings("cifar10")
    with pytest.raises(ConfigError, match="benchmark='mnist' is not known; allowed are cifar10"):
        published_settings("mnist")


def test_a_method_may_have_other_settings_for_small_batches() -> None:
    spec = method_specs("bn_adapt", {"bn_adapt": {"alpha": 1.0, "up_to_batch": {"1": {"alpha": 0.1}}}})["bn_adapt"]
    assert spec == MethodSpec("bn_adapt", {"alpha": 1.0}, {1: {"alpha": 0.1}})
    assert [spec.at(size).settings["alpha"] for size in (1, 2)] == [0.1, 1.0]
    assert method_specs("bn_adapt", published_settings("imagenet"))["bn_adapt"].at(1).settings["unbiased"]


def test_the_cell_of_a_small_batch_is_run_with_its_settings(net: nn.Module) -> None:
    spec = MethodSpec("bn_adapt", {"alpha": 1.0}, {4: {"alpha": 0.25}})
    found = compare(net, Stream, {"norm": spec}, **QUIET)
    alphas = [found.cells["norm", size].provenance["settings"]["alpha"] for size in (4, 8)]  # pyright: ignore
    assert alphas == [0.25, 1.0]


def test_words_that_are_not_known_are_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"method='tents' is not known.*did you mean 'tent'"):
        method_specs("tents")
    with pytest.raises(ConfigError, match=r"source does not take these hyper-parameters.*'speed'"):
        MethodSpec("source", {"speed": 1}).build(net)
    with pytest.raises(ConfigError, match="did you mean tau"):
        MethodSpec("spear", {"taus": 1}).build(net)


def test_a_method_gets_the_resources_that_its_row_declares(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wanting(Source):
        def __init__(self, model: nn.Module, source_images: Any = None) -> None:
            super().__init__(model)
            self.given = source_images

    monkeypatch.setitem(METHODS, "wanting", MethodFactory(Wanting, ("source_images",)))
    resources = {"source_images": torch.ones(2, 3), "accelerator": None}
    method: Any = MethodSpec("wanting").build(net, resources)
    assert method.given is resources["source_images"]
    assert MethodSpec("wanting").describe(resources)["resources"] == {"source_images": {"shape": [2, 3], "sum": 6.0}}
    chosen: Any = MethodSpec("wanting", {"source_images": 1}).build(net, resources)
    assert chosen.given == 1
    assert "resources" not in MethodSpec("spear").describe(resources)
