"""Two processes, each with a slice of a batch, learn and answer as one with the whole: batches of 32, 5 and 1."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import processes
from tests.builders import TinyStream

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


def load(mode: str, folder: Path) -> Found:
    return [torch.load(folder / f"{mode}_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The results of each of two processes."""
    folder = tmp_path_factory.mktemp("exact")
    done = processes.run_in_two_processes(processes.__file__, "exact", str(folder))
    assert done.returncode == 0, done.stderr
    return load("exact", folder)


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    """The results of one process with the whole batch."""
    return {
        "fp64": processes.learn(None, torch.float64, sgd=False),
        "fp32": processes.learn(None, torch.float32, sgd=False),
        "sgd": processes.learn(None, torch.float32, sgd=True),
        "remembering": processes.learn(None, torch.float64, sgd=False, config=processes.REMEMBERING),
    }


def together(two: Found, name: str) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*(rank[name]["answers"] for rank in two), strict=True)]


@pytest.mark.parametrize(("name", "tolerance"), [("fp64", 1e-12), ("remembering", 1e-12), ("sgd", 1e-5)])
def test_two_processes_learn_what_one_learns(two: Found, one: dict[str, Any], name: str, tolerance: float) -> None:
    torch.testing.assert_close(two[0][name]["rsp"], one[name]["rsp"], rtol=0, atol=tolerance)
    torch.testing.assert_close(together(two, name), one[name]["answers"], rtol=0, atol=100 * tolerance)


def test_two_processes_find_the_new_domains_of_one(two: Found, one: dict[str, Any]) -> None:
    found = [record["new_domain"] for record in one["remembering"]["records"]]
    assert [record["new_domain"] for record in two[1]["remembering"]["records"]] == found
    assert any(found), "no batch was found to be of another domain"


@pytest.mark.parametrize("name", ["fp64", "fp32", "sgd"])
def test_gate_and_predictions_are_those_of_one_process(two: Found, one: dict[str, Any], name: str) -> None:
    verdicts = [record["skipped"] for record in one[name]["records"]]
    assert [record["skipped"] for record in two[0][name]["records"]] == verdicts
    assert len(set(verdicts)) > 1, "the gate was open, or closed, for every batch"
    for mine, expected in zip(together(two, name), one[name]["answers"], strict=True):
        assert torch.equal(mine.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", ["fp64", "fp32", "sgd", "wrapped", "own statistics", "own, remembering"])
def test_all_processes_hold_the_same_bits(two: Found, name: str) -> None:
    torch.testing.assert_close(two[0][name]["rsp"], two[1][name]["rsp"], rtol=0, atol=0)
    assert two[0][name]["records"] == two[1][name]["records"]


def test_a_process_without_images_answers_with_no_rows(two: Found) -> None:
    assert [tuple(answer.shape) for answer in two[1]["sgd"]["answers"]] == [
        (16, 10),
        (2, 10),
        (0, 10),
        (0, 10),
        (16, 10),
    ]


def test_a_wrapper_for_data_parallel_training_changes_nothing(two: Found) -> None:
    torch.testing.assert_close(two[0]["wrapped"]["rsp"], two[0]["sgd"]["rsp"], rtol=0, atol=0)


def test_statistics_of_each_process_alone_are_not_those_of_one(two: Found, one: dict[str, Any]) -> None:
    mine, expected = together(two, "own statistics")[0], one["fp64"]["answers"][0]
    assert float((mine - expected).abs().max()) > 1e-3


def test_a_batch_that_one_process_refuses_is_refused_by_all(two: Found) -> None:
    assert "InputError: pixel_values hold NaN" in two[1]["refused"]["message"]
    assert "InputError: process [1] refused its slice" in two[0]["refused"]["message"]
    assert [rank["refused"]["steps"] for rank in two] == [1, 1]


def test_without_an_accelerator_several_processes_are_refused(two: Found) -> None:
    assert two[0]["count"] == 2
    assert "LaunchError: 2 processes run" in two[0]["alone"]


def test_every_process_reports_each_image_once(two: Found) -> None:
    expected = processes.evaluated(None, TinyStream())
    assert [row["n"] for row in two[0]["report"]["rows"]] == [22, 22]
    assert two[0]["report"]["rows"] == two[1]["report"]["rows"] == expected["rows"]
    assert two[0]["report"]["adaptation"] == expected["adaptation"]


def test_every_process_reports_what_any_of_them_left_out(two: Found) -> None:
    assert two[0]["left out"] == two[1]["left out"] == ["1", "6"]


def test_a_run_that_was_killed_goes_on_to_the_same_bits(two: Found, tmp_path: Path) -> None:
    assert processes.run_in_two_processes(processes.__file__, "killed", str(tmp_path)).returncode != 0
    assert not list(tmp_path.glob("*.pt"))
    done = processes.run_in_two_processes(processes.__file__, "resumed", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for rank, found in enumerate(load("resumed", tmp_path)):
        assert found["rows"] == two[rank]["report"]["rows"]
        assert bits(found["state"]) == bits(two[rank]["report"]["state"])


def bits(state: dict[str, Any]) -> list[bytes]:
    moments = [value for slot in state["optimizer"]["state"].values() for value in slot.values()]
    return [value.numpy().tobytes() for value in [*state["rsp"].values(), *moments]]
