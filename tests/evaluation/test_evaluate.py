import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Report, Spear, SpearConfig
from spear_hf.baselines import BnAdapt, Source
from spear_hf.errors import CheckpointError, DataError
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.learning.method import TTAMethod
from tests.builders import Killed, KilledStream, TinyStream, images_and_labels, learner, steered


def methods(net: nn.Module, **changes: Any) -> dict[str, TTAMethod]:
    config = SpearConfig(**({"tau": 0.0, "boundaries": "all"} | changes))
    return {
        "source": Source(copy.deepcopy(net)),
        "alpha only": BnAdapt(copy.deepcopy(net)),
        "SPeaR": Spear(steered(copy.deepcopy(net), config)),
    }


OPTIONS: dict[str, Any] = {"progress": False, "provenance": {"seed": 0}, "measure_memory": True}


class Finished(NamedTuple):
    folder: Path  # of its states
    methods: dict[str, TTAMethod]
    report: Report


@pytest.fixture(scope="module")
def finished(drawn_net: tuple[nn.Module, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run, for tests that change neither its methods nor its folder."""
    folder, made = tmp_path_factory.mktemp("finished"), methods(drawn_net[0])
    return Finished(folder, made, evaluate(made, TinyStream(), checkpoint=folder, **OPTIONS))


def test_every_image_of_every_domain_is_counted_once(net: nn.Module, finished: Finished) -> None:
    rows = finished.report.rows
    assert [(row.domain, row.n) for row in rows] == [("domain0", 22), ("domain1", 22)]
    wrong = sum(
        int((net(x).argmax(1) != y).sum()) for x, y in (images_and_labels(i, n) for i, n in enumerate((16, 5, 1)))
    )
    assert rows[0].error["source"] == pytest.approx(100 * wrong / 22)


def test_a_single_protocol_forgets_before_each_domain_and_a_continual_one_does_not(net: nn.Module) -> None:
    spear = learner(net)
    evaluate({"SPeaR": spear}, TinyStream((4, 2), protocol="single"), progress=False)
    assert spear.num_steps == 2
    spear.reset()
    evaluate({"SPeaR": spear}, TinyStream((4, 2), protocol="continual"), progress=False)
    assert spear.num_steps == 4


def test_the_caller_gets_the_record_of_every_step_of_the_last_method(net: nn.Module) -> None:
    seen: list[tuple[str, int]] = []
    both = {"source": Source(copy.deepcopy(net)), "SPeaR": learner(net)}
    evaluate(both, TinyStream((4, 1)), progress=False, on_step=lambda d, r: seen.append((d, r.batch_size)))
    assert seen == [("domain0", 4), ("domain0", 1), ("domain1", 4), ("domain1", 1)]


def test_the_report_counts_new_domains(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    seen = [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(8)]
    batches = [
        {"pixel_values": x, "labels": torch.zeros(8).long()} for x in [*seen[:6], *(x * 0.3 - 2 for x in seen[6:])]
    ]
    report = evaluate(methods(net, memory_images=64, domain_jump=4.0), batches, progress=False)
    assert report.adaptation["SPeaR"] == {"adapted": 8, "began a new domain": 1}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_report_and_the_same_bits(
    net: nn.Module, finished: Finished, tmp_path: Path
) -> None:
    first, second = methods(net), methods(net)
    with pytest.raises(Killed):
        evaluate(first, KilledStream(), progress=False, checkpoint=tmp_path, checkpoint_every=1)
    report = evaluate(second, TinyStream(), progress=False, checkpoint=tmp_path, checkpoint_every=1)
    assert report.rows == finished.report.rows
    assert report.adaptation == finished.report.adaptation
    assert bits(second) == bits(finished.methods)


def bits(methods: dict[str, TTAMethod]) -> list[bytes]:
    state = methods["SPeaR"].state_dict()
    moments: list[Tensor] = [value for slot in state["optimizer"]["state"].values() for value in slot.values()]
    return [value.numpy().tobytes() for value in [*state["rsp"].values(), *moments]]


@pytest.mark.parametrize("changes", [{"learning_rate": 0.5}, {"boundaries": "0"}])
def test_a_run_of_another_configuration_is_not_resumed(
    net: nn.Module, finished: Finished, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"another configuration.*{next(iter(changes))}"):
        evaluate(methods(net, **changes), TinyStream(), checkpoint=finished.folder, **OPTIONS)


def test_a_run_of_another_seed_is_not_resumed(net: nn.Module, finished: Finished) -> None:
    with pytest.raises(CheckpointError, match="seed: 0, here 1"):
        evaluate(methods(net), TinyStream(), checkpoint=finished.folder, **OPTIONS | {"provenance": {"seed": 1}})


def test_a_finished_run_gives_its_report_again(net: nn.Module, finished: Finished) -> None:
    assert evaluate(methods(net), TinyStream(), checkpoint=finished.folder, **OPTIONS) == finished.report


def test_labels_that_do_not_fit_are_refused(net: nn.Module) -> None:
    class Shifted(TinyStream):
        def batch(self, number: int) -> dict[str, Any]:
            batch = super().batch(number)
            return batch | {"labels": batch["labels"] + 7}

    source = {"source": Source(net)}
    with pytest.raises(DataError, match="do not fit a model with 10 classes"):
        evaluate(source, Shifted(), progress=False)


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
    both = {"source": Source(copy.deepcopy(net)), "SPeaR": learner(net)}
    evaluate(both, TinyStream((4, 2)), accelerator=accelerator, progress=False)
    assert [step for step, _ in kept.logged] == list(range(4))
    assert {"error/source", "error/SPeaR", "gate/entropy", "gate/adapted", "loss/total"} <= kept.logged[0][1].keys()


def test_a_report_is_read_back_as_it_was_written(finished: Finished, tmp_path: Path) -> None:
    assert Report.from_json(finished.report.to_json(tmp_path / "report.json")) == finished.report
    assert torch.tensor(finished.report.mean_error("SPeaR")).isfinite()


def test_a_report_says_what_the_answers_and_the_steps_were_worth(net: nn.Module, finished: Finished) -> None:
    report, row = finished.report, finished.report.rows[0]
    answers = [(net(x), y) for x, y in (images_and_labels(i, n) for i, n in enumerate((16, 5, 1)))]
    logits, labels = (torch.cat(parts) for parts in zip(*answers, strict=True))
    assert row.nll["source"] == pytest.approx(float(nn.functional.cross_entropy(logits.detach(), labels)), abs=1e-4)
    assert 0 < row.ece["source"] < 100
    assert report.parameters == {"source": 0, "alpha only": 0, "SPeaR": 2 * (8 + 8 + 16 + 24)}
    assert report.memory["source"] == 0 < report.memory["SPeaR"]
    assert report.seconds_per_image("SPeaR") == report.seconds["SPeaR"] / 44


class Unlabelled(TinyStream):
    def batch(self, number: int) -> dict[str, Any]:
        return super().batch(number) | {"labels": None}


def test_without_labels_the_report_says_what_changed(net: nn.Module) -> None:
    moved = BnAdapt(copy.deepcopy(net), 1.0)
    report = evaluate({"source": Source(net), "moved": moved}, Unlabelled(), progress=False)
    assert (report.has_errors, report.rows[0].error) == (False, {})
    assert report.rows[0].changed["source"] == 0 < report.rows[0].changed["moved"]
    assert 0 < report.rows[0].entropy["moved"] < 1
    assert Report.from_dict(report.to_dict()) == report


def test_the_users_own_loader_is_evaluated_and_nothing_is_reset(net: nn.Module) -> None:
    images, labels = images_and_labels(0, 12)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=5)
    pristine, tta = copy.deepcopy(net), learner(net)
    tta.step(images)
    report = evaluate({"source": Source(pristine), "SPeaR": tta}, loader, progress=False)
    assert (report.images, tta.num_steps) == (12, 4)
    with torch.no_grad():
        wrong = float((pristine(images).argmax(1) != labels).float().mean())
    assert report.rows[0].error["source"] == pytest.approx(100 * wrong)


def test_labels_in_part_of_a_stream_are_refused(net: nn.Module) -> None:
    images, labels = images_and_labels(0, 4)
    with pytest.raises(DataError, match="others have none"):
        evaluate({"source": Source(net)}, [(images, labels), (images,)], progress=False)


def test_a_plain_loader_has_no_checkpoint(net: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a list cannot be resumed"):
        evaluate({"source": Source(net)}, [images_and_labels(0, 4)], progress=False, checkpoint=tmp_path)


def test_all_classes_can_be_answered_unless_restricted(net: nn.Module) -> None:
    class Restricted(TinyStream):
        class_subset = torch.tensor([3])

    open_to_all = evaluate({"source": Source(net)}, Restricted(), progress=False)
    restricted = evaluate({"source": Source(net)}, Restricted(), progress=False, restrict_classes=True)
    assert open_to_all.rows != restricted.rows
    assert restricted.provenance["answers"] == "the 1 classes of these images"


def test_mixed_precision_stands_in_the_report(net: nn.Module) -> None:
    class Accelerator:
        mixed_precision, num_processes, process_index, device = "bf16", 1, 0, torch.device("cpu")
        log = staticmethod(lambda values, step: None)

    report = evaluate({"source": Source(net)}, TinyStream(), progress=False, accelerator=Accelerator())
    assert (report.provenance["mixed_precision"], report.provenance["device"]) == ("bf16", "cpu")
