"""SAR's two-step gradient, its average and its way back, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.losses import entropy
from spear_hf.baselines.sar import RECOVERED, ReliableEntropy, ascend
from tests.builders import batch_of, logits_of_probabilities

SURE, UNSURE = [0.94, 0.02, 0.02, 0.02], [0.4, 0.2, 0.2, 0.2]


def h(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def test_only_reliable_images_count() -> None:
    loss = ReliableEntropy()(batch_of(logits_of_probabilities([SURE, UNSURE])))
    assert loss is not None
    assert loss.item() == pytest.approx(h(SURE), rel=1e-5)
    assert ReliableEntropy()(batch_of(logits_of_probabilities([UNSURE]))) is None


def test_at_the_peak_an_image_must_be_reliable_twice_and_the_average_is_of_there() -> None:
    objective = ReliableEntropy()
    batch = batch_of(logits_of_probabilities([SURE, SURE, UNSURE]))
    loss = objective.at_peak(logits_of_probabilities([[0.97, 0.01, 0.01, 0.01], UNSURE, SURE]), batch)
    assert loss is not None
    first = h([0.97, 0.01, 0.01, 0.01])
    assert loss.item() == objective.mean == pytest.approx(first, rel=1e-5)
    objective.at_peak(logits_of_probabilities([SURE, SURE, SURE]), batch)
    assert objective.mean == pytest.approx(0.9 * first + 0.1 * h(SURE), rel=1e-5)
    assert objective.at_peak(logits_of_probabilities([UNSURE, UNSURE, SURE]), batch) is None


def test_the_ascent_has_the_length_rho_over_all_parameters() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    ascend([a, b], [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], 0.05)
    torch.testing.assert_close(torch.cat([a.detach(), b.detach()]), torch.tensor([0.03, 0.0, 0.04]))


def test_the_step_is_taken_from_here_with_the_gradient_of_there(net: nn.Module, images: Tensor) -> None:
    sar: Any = METHODS["sar"](net, threshold=1.0, learning_rate=0.1, momentum=0.0, scale_lr=False)
    parameters = sar.learned.parameters

    def gradient() -> list[Tensor]:
        return list(torch.autograd.grad(entropy(sar.adapted.forward(images)).mean(), parameters))

    first = gradient()
    norm = torch.cat([g.flatten() for g in first]).norm()
    sar.learned.put([w + 0.05 * g / norm for w, g in zip(sar.learned.start, first, strict=True)])
    there = gradient()
    sar.learned.put(sar.learned.start)
    sar.step(images)
    expected = [w - 0.1 * g for w, g in zip(sar.learned.start, there, strict=True)]
    torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-4, atol=1e-6)


def test_collapse_restores_the_source_once_and_starts_a_new_average(net: nn.Module, images: Tensor) -> None:
    sar: Any = METHODS["sar"](net, threshold=1.0)
    sar.step(images)
    sar.reliable.mean = 0.01
    sar.floor = 0.9 * 0.01 + 0.1 * math.log(10)  # above whatever the next average is
    sar.step(images)
    assert (sar.last.skipped, sar.reliable.mean) == (RECOVERED, None)
    assert all(torch.equal(p, s) for p, s in zip(sar.parameters(), sar.learned.start, strict=True))
    assert not sar.optimizer.state
    sar.floor = 0.2
    sar.step(images)
    assert sar.last.adapted
    assert sar.reliable.mean > 0.2


@pytest.mark.parametrize("keep_momentum", [True, False])
def test_momentum_outlives_a_recovery_if_one_asks_for_the_authors_code(
    keep_momentum: bool, net: nn.Module, images: Tensor
) -> None:
    sar: Any = METHODS["sar"](net, threshold=1.0, keep_momentum=keep_momentum)
    sar.step(images)
    before = [sar.optimizer.state[p]["momentum_buffer"].clone() for p in sar.parameters()]
    sar.floor = 1e9
    sar.step(images)
    assert sar.last.skipped == RECOVERED
    assert bool(sar.optimizer.state) is keep_momentum
    for p, old in zip(sar.parameters(), before, strict=True):
        assert not keep_momentum or not torch.equal(sar.optimizer.state[p]["momentum_buffer"], 0.9 * old)


def test_no_reliable_image_is_no_step_by_momentum_either(net: nn.Module, images: Tensor) -> None:
    sar: Any = METHODS["sar"](net, threshold=1.0)
    sar.step(images)
    before = sar.learned.snapshot()
    sar.objective.threshold = 0.0
    sar.step(images)
    assert not sar.last.adapted
    assert all(torch.equal(p, b) for p, b in zip(sar.parameters(), before, strict=True))


@pytest.mark.parametrize("name", ["sar", "deyo"])
def test_the_last_stage_is_left_alone_and_small_batches_go_slowly(name: str, net: nn.Module, images: Tensor) -> None:
    method: Any = METHODS[name](net)
    learned = {id(p) for p in method.parameters()}
    assert next(n for n, p in net.named_parameters() if ".bn." in n and id(p) not in learned).startswith("layer3.0")
    assert (method.optimizer_config.optimizer, method.optimizer_config.learning_rate) == ("sgd", 2.5e-4)
    method = METHODS[name](method.unload(), skip=(), threshold=1.0, **({"margin": -1.0} if name == "deyo" else {}))
    assert len(list(method.parameters())) == 8
    method.step(images)
    assert method.optimizer.param_groups[0]["lr"] == pytest.approx(1.25e-4)
    norms = nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3))
    assert METHODS[name](norms, skip=()).optimizer_config.learning_rate == 1e-3
