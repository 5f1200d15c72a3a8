import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.domain_shift import DomainShiftDetector
from spear_hf.learning.statistics_memory import distances
from tests.builders import check_resume, steered

FAR = math.log(8.0)


def learner(net: nn.Module, **changes: Any) -> Spear:
    config = SpearConfig.paper(tau=0.0, learning_rate=0.0, memory_images=64, domain_jump=4.0)
    return Spear(steered(net, SpearConfig.from_dict(config.to_dict() | changes)))


def domains() -> list[Tensor]:
    """Twelve batches of eight images, the last six darker and of less contrast."""
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(12)]
    return batches[:6] + [x * 0.3 - 2 for x in batches[6:]]


def test_a_jump_is_far_beyond_what_is_usual_over_the_layers() -> None:
    jump = DomainShiftDetector(4.0)
    assert not any(jump.has_come({"a": value, "b": -value}) for value in (0.0, 0.2, -0.2, 0.1))
    assert not jump.has_come({"a": 0.1 + FAR, "b": -0.1 - FAR})  # their geometric mean is as usual
    assert jump.has_come({"a": 2 * FAR, "b": 2 * FAR})


def test_nothing_is_a_jump_before_the_usual_is_known() -> None:
    jump = DomainShiftDetector(4.0)
    assert not jump.has_come({"a": 0.0})
    assert not jump.has_come({"a": FAR})


def test_a_stream_that_always_jumps_gets_used_to_it() -> None:
    jump = DomainShiftDetector(4.0)
    assert not any(jump.has_come({"a": 0.0}) for _ in range(20))
    came = [jump.has_come({"a": FAR}) for _ in range(100)]
    assert came[0]
    assert not came[-1]


def test_distances_that_are_not_finite_say_nothing() -> None:
    jump = DomainShiftDetector(4.0)
    for value in (0.0, 0.0, math.nan, math.inf, -math.inf):
        assert not jump.has_come({"a": value})
    assert jump.usual == {"a": 0.0}


def test_the_distance_is_that_of_normal_distributions_both_ways() -> None:
    (m, v), (n, w) = [(torch.randn(5), torch.rand(5) + 0.5) for _ in range(2)]
    p, q = torch.distributions.Normal(m, v.sqrt()), torch.distributions.Normal(n, w.sqrt())
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(distances((m, v), (n, w), eps=0.0), kl(p, q) + kl(q, p))
    assert not bool(distances((m, v), (m, v)).any())


def test_a_new_domain_is_answered_as_if_nothing_was_before_it(net: nn.Module) -> None:
    tta = learner(net)
    found, answers = [], []
    for x in domains():
        answers.append(tta.step(x))
        found.append(tta.last is not None and tta.last.new_domain)
    assert found == [False] * 6 + [True] + [False] * 5
    fresh = learner(tta.unload())
    assert all(torch.equal(fresh.step(x), answer) for x, answer in zip(domains()[6:], answers[6:], strict=True))


@pytest.mark.parametrize("streams", [None, "a"])
def test_what_was_learned_in_the_last_domain_is_forgotten_in_a_new_one(net: nn.Module, streams: str | None) -> None:
    tta = learner(net, learning_rate=0.01)
    answers = [tta.step(x, streams=streams) for x in domains()]
    assert torch.equal(learner(tta.unload()).step(domains()[6]), answers[6])


def test_without_it_the_old_domain_is_remembered(net: nn.Module) -> None:
    tta = learner(net, domain_jump=0.0)
    answers = [tta.step(x) for x in domains()]
    assert not torch.allclose(learner(tta.unload()).step(domains()[6]), answers[6])


def test_reset_and_resume_give_the_same_bits(net: nn.Module) -> None:
    check_resume(learner(net, learning_rate=0.01), domains(), split=5)


def test_a_network_without_batch_norms_never_jumps() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    tta = learner(net.eval(), boundaries="all")
    for x in domains():
        tta.step(x)
        assert tta.last is not None
        assert not tta.last.new_domain


@pytest.mark.parametrize("factor", [0.5, 1.0, -1.0])
def test_a_jump_of_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"domain_jump=.* is not allowed"):
        SpearConfig(domain_jump=factor)


def test_without_a_memory_no_jump_is_looked_for(net: nn.Module) -> None:
    tta = learner(net, memory_images=0)
    for x in domains():
        tta.step(x)
        assert tta.last is not None
        assert not tta.last.new_domain
