import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Report, Spear, SpearConfig, get_spear_model
from spear_hf.baselines import BnAdapt, Source
from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.accumulate import MetricAccumulator
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from tests.builders import Killed, KilledStream, TinyStream, images_and_labels
from tests.learning.test_alpha_selection import with_variance


def methods(net: nn.Module, **changes: Any) -> dict[str, TTAMethod]:
    config = SpearConfig(**({"tau": 0.0, "boundaries": "all"} | changes))
    return {
        "source": Source(copy.deepcopy(net)),
        "alpha only": BnAdapt(copy.deepcopy(net)),
        "SPeaR": Spear(get_spear_model(copy.deepcopy(net), config)),
    }


def test_every_image_of_every_domain_is_counted_once(net: nn.Module) -> None:
    report = evaluate(methods(net), TinyStream(), progress=False)
    assert [(row.domain, row.n) for row in report.rows] == [("domain0", 22), ("domain1", 22)]
    wrong = sum(
        int((net(x).argmax(1) != y).sum()) for x, y in (images_and_labels(i, n) for i, n in enumerate((16, 5, 1)))
    )
    assert report.rows[0].error["source"] == pytest.approx(100 * wrong / 22)


def test_a_single_protocol_forgets_before_each_domain_and_a_continual_one_does_not(net: nn.Module) -> None:
    single, continual = methods(net), methods(net)
    evaluate(single, TinyStream(protocol="single"), progress=False)
    evaluate(continual, TinyStream(protocol="continual"), progress=False)
    assert (single["SPeaR"].num_steps, continual["SPeaR"].num_steps) == (3, 6)  # pyright: ignore


def test_the_caller_gets_the_record_of_every_step_of_the_last_method(net: nn.Module) -> None:
    seen: list[tuple[str, StepRecord]] = []
    evaluate(methods(net), TinyStream(), progress=False, on_step=lambda *step: seen.append(step))
    assert [(domain, record.batch_size) for domain, record in seen][:3] == [
        ("domain0", 16),
        ("domain0", 5),
        ("domain0", 1),
    ]


def test_the_report_counts_new_domains_and_whole_statistics(net: nn.Module) -> None:
    seen: list[StepRecord] = []
    trying = methods(with_variance(net, 1000.0), statistics_memory=16, domain_jump=1.01, alpha_trial=64)
    report = evaluate(trying, TinyStream(), progress=False, on_step=lambda _, record: seen.append(record))
    jumps, whole = sum(r.new_domain for r in seen), sum(r.whole_statistics for r in seen)
    expected = {"adapted": 6, "began a new domain": jumps, "without the source's statistics": whole}
    assert report.adaptation["SPeaR"] == {what: count for what, count in expected.items() if count}
    assert whole > 0


def test_a_killed_run_goes_on_to_the_same_report_and_the_same_bits(net: nn.Module, tmp_path: Path) -> None:
    whole, first, second = methods(net), methods(net), methods(net)
    expected = evaluate(whole, TinyStream(), progress=False)
    with pytest.raises(Killed):
        evaluate(first, KilledStream(), progress=False, checkpoint=tmp_path, checkpoint_every=1)
    report = evaluate(second, TinyStream(), progress=False, checkpoint=tmp_path, checkpoint_every=1)
    assert report.rows == expected.rows
    assert report.adaptation == expected.adaptation
    assert bits(second) == bits(whole)


def bits(methods: dict[str, TTAMethod]) -> list[bytes]:
    state = methods["SPeaR"].state_dict()
    moments: list[Tensor] = [value for slot in state["optimizer"]["state"].values() for value in slot.values()]
    return [value.numpy().tobytes() for value in [*state["rsp"].values(), *moments]]


@pytest.mark.parametrize("changes", [{"learning_rate": 0.5}, {"boundaries": "0"}])
def test_a_run_of_another_configuration_is_not_resumed(net: nn.Module, tmp_path: Path, changes: dict[str, Any]) -> None:
    evaluate(methods(net), TinyStream(), progress=False, checkpoint=tmp_path, provenance={"seed": 0})
    with pytest.raises(ValueError, match=f"another configuration.*{next(iter(changes))}"):
        evaluate(methods(net, **changes), TinyStream(), progress=False, checkpoint=tmp_path, provenance={"seed": 0})
    with pytest.raises(CheckpointError, match="seed: 0, here 1"):
        evaluate(methods(net), TinyStream(), progress=False, checkpoint=tmp_path, provenance={"seed": 1})


def test_a_finished_run_gives_its_report_again(net: nn.Module, tmp_path: Path) -> None:
    first = evaluate(methods(net), TinyStream(), progress=False, checkpoint=tmp_path)
    assert evaluate(methods(net), TinyStream(), progress=False, checkpoint=tmp_path).rows == first.rows


def test_labels_that_do_not_fit_are_refused(net: nn.Module) -> None:
    class Shifted(TinyStream):
        def batch(self, number: int) -> dict[str, Any]:
            batch = super().batch(number)
            return batch | {"labels": batch["labels"] + 7}

    class Unlabelled(TinyStream):
        def batch(self, number: int) -> dict[str, Any]:
            return super().batch(number) | {"labels": None}

    with pytest.raises(DataError, match="do not fit a model with 10 classes"):
        evaluate(methods(net), Shifted(), progress=False)
    with pytest.raises(DataError, match="no labels"):
        evaluate(methods(net), Unlabelled(), progress=False)


def test_a_tracker_gets_one_record_for_each_batch(net: nn.Module) -> None:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    class Kept(GeneralTracker):
        name, requires_logging_directory, tracker = "kept", False, None

        def __init__(self) -> None:
            super().__init__()
            self.logged: list[tuple[int, dict[str, float]]] = []

        def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
            self.logged.append((step or 0, values))

    kept = Kept()
    accelerator = Accelerator(cpu=True, log_with=[kept])
    accelerator.init_trackers("spear")
    evaluate(methods(net), TinyStream(), accelerator=accelerator, progress=False)
    assert [step for step, _ in kept.logged] == list(range(6))
    assert {"error/source", "error/SPeaR", "gate/entropy", "gate/adapted", "loss/total"} <= kept.logged[0][1].keys()


def test_a_report_is_read_back_as_it_was_written(net: nn.Module, tmp_path: Path) -> None:
    report = evaluate(methods(net), TinyStream(), progress=False)
    assert Report.from_json(report.to_json(tmp_path / "report.json")) == report
    assert torch.tensor(report.mean_error("SPeaR")).isfinite()


def test_a_report_says_what_the_answers_and_the_steps_were_worth(net: nn.Module) -> None:
    report = evaluate(methods(net), TinyStream(), progress=False, measure_memory=True)
    row = report.rows[0]
    answers = [(net(x), y) for x, y in (images_and_labels(i, n) for i, n in enumerate((16, 5, 1)))]
    logits, labels = (torch.cat(parts) for parts in zip(*answers, strict=True))
    assert row.nll["source"] == pytest.approx(float(nn.functional.cross_entropy(logits.detach(), labels)), abs=1e-4)
    assert 0 < row.ece["source"] < 100
    assert report.parameters == {"source": 0, "alpha only": 0, "SPeaR": 2 * (8 + 8 + 16 + 24)}
    assert report.memory["source"] == 0 < report.memory["SPeaR"]
    assert report.seconds_per_image("SPeaR") == report.seconds["SPeaR"] / 44


def test_a_resumed_run_keeps_what_was_measured(net: nn.Module, tmp_path: Path) -> None:
    options: dict[str, Any] = {"progress": False, "checkpoint": tmp_path, "measure_memory": True}
    first = evaluate(methods(net), TinyStream(), **options)
    assert evaluate(methods(net), TinyStream(), **options) == first


def test_a_report_of_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    row = {"domain": "fog/5", "n": 4, "error": {"source": 25.0}}
    old = {"rows": [row], "methods": ["source"], "mean_error": {"source": 25.0}, "seconds": {"source": 1.0}}
    (tmp_path / "report.json").write_text(json.dumps(old))
    report = Report.from_json(tmp_path / "report.json")
    assert (report.mean_error("source"), report.rows[0].nll, report.memory) == (25.0, {}, {})
    assert "NaN" not in report.to_json(tmp_path / "again.json").read_text()


def test_a_state_of_an_earlier_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match="saved by an earlier version"):
        MetricAccumulator(["source"]).load_state_dict({"counts": {}, "seconds": {}, "adaptation": {}})
