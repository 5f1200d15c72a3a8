"""ROID's weights, likelihood ratio, ensemble and prior, and CMF's Kalman filter, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.baselines import METHODS
from spear_hf.baselines.augmentation import Augmentation
from spear_hf.baselines.roid import CertainDiverse, PriorCorrection, WeightEnsemble, scaled, soft_likelihood_ratio
from spear_hf.errors import ConfigError
from tests.builders import NORMALIZATION, NORMALIZED, batch_of, logits_of_probabilities

P = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]


def objective() -> CertainDiverse:
    return CertainDiverse(Augmentation(NORMALIZATION, blur=False))


def h(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def test_weights_are_of_certainty_and_diversity_and_leave_out_the_familiar() -> None:
    found = objective().weights(logits_of_probabilities(P))
    d = [1 - (sum(p) / 3) / (math.sqrt(1 / 3) * math.sqrt(sum(v * v for v in p))) for p in P]
    d = [(v - min(d)) / (max(d) - min(d)) for v in d]
    u = [-h(p) for p in P]
    u = [(v - min(u)) / (max(u) - min(u)) for v in u]
    expected = [math.exp(a * b * 3) if a >= sum(d) / 3 else 0.0 for a, b in zip(d, u, strict=True)]
    assert expected[2] == 0.0
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_the_average_of_the_classes_begins_uniform() -> None:
    loss = objective()
    loss.weights(logits_of_probabilities(P))
    torch.testing.assert_close(loss.classes, 0.9 * torch.full((3,), 1 / 3) + 0.1 * torch.tensor(P).mean(0))


def test_equal_images_weigh_one_rather_than_nan() -> None:
    assert torch.equal(scaled(torch.tensor([2.0, 2.0])), torch.zeros(2))
    assert torch.equal(objective().weights(logits_of_probabilities(P[:1])), torch.ones(1))
    assert torch.equal(objective().weights(logits_of_probabilities([P[0], P[0]])), torch.ones(2))


def test_the_likelihood_ratio_is_bounded() -> None:
    p = [0.7, 0.2, 0.1]
    expected = -sum(v * math.log(v / (1 - v) + 1e-5) for v in p)
    sure = -0.99 * math.log(0.99 / 0.01 + 1e-5)
    found = soft_likelihood_ratio(torch.stack([torch.tensor(p).log(), torch.tensor([90.0, 0.0, 0.0])]))
    torch.testing.assert_close(found, torch.tensor([expected, sure]), rtol=1e-4, atol=1e-4)


def test_the_loss_sums_over_what_is_kept_and_divides_by_the_nominal_batch_size() -> None:
    logits, views = logits_of_probabilities(P), logits_of_probabilities([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]])
    seen: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return views

    loss = objective()(batch_of(logits, forward=forward, nominal_batch_size=8))
    weights = objective().weights(logits)[:2]
    p, q = logits[:2].softmax(1), views.softmax(1)
    symmetric = -0.5 * (q * p.log()).sum(1) - 0.5 * (p * q.log()).sum(1)
    expected = (weights * (soft_likelihood_ratio(logits[:2]) + symmetric)).sum() / 8
    torch.testing.assert_close(loss, expected)
    assert [len(x) for x in seen] == [2]


def test_the_prior_corrects_predictions() -> None:
    logits = logits_of_probabilities([[0.6, 0.2, 0.2], [0.5, 0.4, 0.1]])
    prior = torch.tensor([0.55, 0.3, 0.15])
    s = 0.5 / 0.55
    smooth = (prior + s) / (1 + 3 * s)
    found = PriorCorrection().answer(batch_of(logits + 5))
    expected = logits.softmax(1) * smooth
    torch.testing.assert_close(found.softmax(1), expected / expected.sum(1, keepdim=True))
    torch.testing.assert_close(PriorCorrection("logits").answer(batch_of(logits)), logits * smooth)
    assert PriorCorrection("none").answer(batch_of(logits)) is logits
    with pytest.raises(ConfigError, match="prior='labels' is not known"):
        PriorCorrection("labels")


def test_a_step_is_followed_by_a_hundredth_of_the_way_back(net: nn.Module, images: Tensor) -> None:
    ends = []
    for ensemble in (1.0, 0.99):
        roid: Any = METHODS["roid"](net, ensemble=ensemble, learning_rate=0.01, **NORMALIZED)
        roid.step(images)
        ends.append([p.detach() - s for p, s in zip(roid.parameters(), roid.learned.start, strict=True)])
        ends[-1] = [e.clone() for e in ends[-1]]
        roid.unload()
    torch.testing.assert_close(ends[1], [0.99 * e for e in ends[0]], rtol=1e-3, atol=1e-6)
    assert WeightEnsemble(0.5).settings()["kept"] == 0.5


def test_roids_objective_on_rsps_is_a_configuration(net: nn.Module, images: Tensor) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    roid: Any = METHODS["roid"](net, where="rsp", config=SpearConfig(boundaries="all"), **NORMALIZED)
    first = roid.step(images)
    assert not torch.equal(roid.step(images), first)
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    assert sum(p.numel() for p in roid.parameters()) == 112
