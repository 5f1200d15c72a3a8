from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spear_hf import Spear, get_spear_model
from spear_hf.errors import ConfigError, InputError, LaunchError
from spear_hf.learning.objective import batch_means, spear_loss
from spear_hf.steering.moments import batch_statistics
from spear_hf.steering.rsp import RSP
from spear_hf.utils.batch import validate_batch
from spear_hf.utils.distributed import UNSUPPORTED, BatchShard, ProcessGroup


def halves(parts: list[torch.Tensor]) -> Any:
    """A sum over two processes, the other of which is played by `parts`, taken one after the other."""
    waiting = iter(parts)
    return lambda x: x + next(waiting)


def test_one_process_has_the_whole_batch() -> None:
    shard = ProcessGroup().shard(5)
    assert (shard.local, shard.total, shard.offset) == (5, 5, 0)


def test_a_share_knows_its_place_in_the_global_batch() -> None:
    shard = BatchShard((3, 0, 4), 2, sum=lambda x: x)
    assert (shard.local, shard.total, shard.offset) == (4, 7, 3)


def test_means_of_two_slices_are_those_of_the_whole() -> None:
    logits = torch.randn(7, 5, dtype=torch.float64)
    other = BatchShard((4, 3), 1, sum=lambda x: x)
    part = torch.cat([x.reshape(-1) for x in batch_means(logits[4:], other)]) * 7
    entropy, prediction = batch_means(logits[:4], BatchShard((4, 3), 0, halves([part])))
    torch.testing.assert_close((entropy, prediction), batch_means(logits))


def test_statistics_of_two_slices_are_those_of_the_whole() -> None:
    x = torch.randn(7, 3, 4, 4, dtype=torch.float64) * 2 + 5
    around, sent = torch.full((3,), 4.0), []
    batch_statistics(x[4:], BatchShard((4, 3), 1, sum=lambda part: sent.append(part) or part), around)
    found = batch_statistics(x[:4], BatchShard((4, 3), 0, halves(sent)), around)
    torch.testing.assert_close(found, batch_statistics(x), rtol=1e-12, atol=1e-12)


def test_a_process_without_images_adds_nothing_whatever_it_holds() -> None:
    shard = BatchShard((0, 3), 0, sum=lambda part: part)
    statistics = batch_statistics(torch.full((1, 2, 4, 4), float("nan")), shard)
    assert statistics is not None
    assert not any(bool(value.any()) for value in statistics)


def test_a_global_batch_of_one_value_a_channel_has_no_statistics() -> None:
    assert batch_statistics(torch.randn(1, 3, 1, 1), BatchShard((1, 0), 0, sum=lambda x: x)) is None
    assert batch_statistics(torch.randn(1, 3, 1, 1), BatchShard((1, 1), 0, sum=lambda x: x)) is not None


def test_a_loss_of_no_images_has_a_gradient_of_zero() -> None:
    rsp, logits = RSP(2, 1), torch.zeros(0, 4, requires_grad=True)
    from spear_hf.config import SpearConfig

    loss = spear_loss(
        logits * rsp.gamma.sum(), {0: [rsp]}, SpearConfig(), BatchShard((0, 2), 0, halves([torch.ones(6)]))
    )
    assert not any(bool(g.any()) for g in torch.autograd.grad(loss.total, list(rsp.parameters())))


def test_a_process_without_images_runs_a_black_one() -> None:
    processes = ProcessGroup()
    processes.count, processes.rank, processes._all = 2, 1, lambda number: (3, number)  # pyright: ignore
    x, shard = validate_batch(torch.zeros(0, 3, 8, 8), processes)
    assert (tuple(x.shape), shard.sizes, shard.local) == ((1, 3, 8, 8), (3, 0), 0)


def test_what_another_process_refuses_is_refused_here() -> None:
    processes = ProcessGroup()
    processes.count, processes._all = 2, lambda number: (number, -1)  # pyright: ignore
    with pytest.raises(InputError, match=r"process \[1\] refused its slice"):
        validate_batch(torch.zeros(2, 3, 8, 8), processes)


def test_a_batch_without_any_image_is_refused() -> None:
    processes = ProcessGroup()
    processes.count, processes._all = 2, lambda number: (0, 0)  # pyright: ignore
    with pytest.raises(InputError, match="no process has an image"):
        validate_batch(torch.zeros(0, 3, 8, 8), processes)


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_ways_of_sharding_that_cannot_work_are_refused_with_the_reason(kind: str) -> None:
    accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind), num_processes=2, process_index=0)
    with pytest.raises(LaunchError, match=f"{kind} is not supported: .*start plain processes"):
        ProcessGroup(accelerator)


def test_replicas_that_forget_are_refused(net: torch.nn.Module) -> None:
    model = get_spear_model(net)
    with pytest.raises(LaunchError, match=r"DataParallel copies the model.*one process for each device"):
        Spear(torch.nn.DataParallel(model))
    with pytest.raises(ConfigError, match="not a TinyNet; call get_spear_model"):
        Spear(net)


def test_every_third_image_of_a_global_batch_wherever_it_lies() -> None:
    sizes = (4, 0, 3, 1)  # global positions 0..3, none, 4..6, 7; every third is 0, 3, 6
    found = [BatchShard(sizes, rank, lambda x: x).every(3) for rank in range(4)]
    assert found[0][0].sizes == (2, 0, 1, 0)
    assert [list(range(size))[chosen] for size, (_, chosen) in zip(sizes, found, strict=True)] == [[0, 3], [], [2], []]
