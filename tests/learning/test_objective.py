import math

import pytest
import torch

from spear_hf.config import SpearConfig
from spear_hf.learning.class_marginal import ClassMarginal
from spear_hf.learning.objective import (
    anchor_loss,
    diversity_loss,
    entropy_loss,
    evidence,
    evidence_share,
    likelihood_ratio,
    normalized_entropy,
    should_adapt,
    spear_loss,
)
from spear_hf.steering.rsp import RSP


def test_entropy_of_known_predictions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(3), 0.0, -math.inf, -math.inf]])
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    torch.testing.assert_close(normalized_entropy(logits), torch.tensor([1.0, expected]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_entropy_is_fp32_whatever_the_logits_are(dtype: torch.dtype) -> None:
    assert normalized_entropy(torch.randn(3, 5).to(dtype)).dtype == torch.float32


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e30, 3e38, math.inf])
def test_losses_and_gradients_are_finite_for_any_logits(size: float) -> None:
    logits = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    total = normalized_entropy(logits).mean() + diversity_loss(logits)
    (gradient,) = torch.autograd.grad(total, logits)
    assert bool(torch.isfinite(total))
    assert bool(torch.isfinite(gradient).all())


def test_diversity_is_zero_for_balanced_and_log_k_for_collapsed_predictions() -> None:
    balanced = 100 * torch.eye(4)
    torch.testing.assert_close(diversity_loss(balanced), torch.tensor(0.0), atol=1e-6, rtol=0)
    collapsed = 100 * torch.eye(4)[[0, 0, 0]]
    torch.testing.assert_close(diversity_loss(collapsed), torch.tensor(math.log(4)))


def test_hard_gate_is_shut_strictly_below_tau() -> None:
    assert not should_adapt(torch.tensor(0.19), 0.2)
    assert should_adapt(torch.tensor(0.2), 0.2)


def test_soft_gate_has_no_value_and_no_gradient_below_tau() -> None:
    mean = torch.tensor(0.3, requires_grad=True)
    torch.testing.assert_close(entropy_loss(mean, 0.1), torch.tensor(0.2))
    (gradient,) = torch.autograd.grad(entropy_loss(mean, 0.4), mean)
    assert float(gradient) == 0.0


def test_anchor_weighs_deeper_rsps_more() -> None:
    shallow, deep = RSP(2, 1), RSP(2, 1)
    for rsp in (shallow, deep):
        rsp.gamma.data = torch.tensor([1.5, 1.0])
    torch.testing.assert_close(anchor_loss({0: [shallow]}, 2.0).detach(), torch.tensor(0.25))
    torch.testing.assert_close(anchor_loss({3: [deep]}, 2.0).detach(), torch.tensor(8 * 0.25))


def test_the_total_is_the_weighted_sum() -> None:
    rsp, logits = RSP(2, 1), torch.randn(8, 5)
    rsp.beta.data.fill_(0.5)
    config = SpearConfig(lambda_ent=2.0, lambda_div=3.0, lambda_anchor=5.0, tau=0.1, evidence_images=3.2)
    losses = spear_loss(logits, {1: [rsp]}, config)
    expected = 2 * losses.entropy + 3 * 0.5 * losses.diversity + 5 * losses.anchor  # 8 of 5 * 3.2 images
    torch.testing.assert_close(losses.total, expected)


def test_the_likelihood_ratio_takes_its_share_of_the_entropy_term() -> None:
    logits, config = torch.randn(8, 5), SpearConfig(likelihood_ratio=0.25)
    losses = spear_loss(logits, {0: [RSP(2, 1)]}, config)
    p = logits.softmax(-1)
    ratio = -(p * (p / (1 - p)).log()).sum(-1).mean() / math.log(5)
    torch.testing.assert_close(losses.entropy, 0.75 * losses.mean_entropy + 0.25 * ratio)


def test_a_sure_answer_keeps_its_gradient() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0]], requires_grad=True)
    (of_entropy,) = torch.autograd.grad(normalized_entropy(logits).sum(), logits)
    (of_ratio,) = torch.autograd.grad(likelihood_ratio(logits).sum(), logits)
    assert of_ratio.norm() > 100 * of_entropy.norm()
    assert bool(torch.isfinite(torch.autograd.grad(likelihood_ratio(logits * 1e6).sum(), logits)[0]).all())


def test_few_images_of_many_classes_weigh_less() -> None:
    assert [evidence_share(n, 10, 1.6) for n in (4, 16, 64)] == [0.25, 1.0, 1.0]
    assert evidence_share(1, 1000, 0.0) == 1.0
    seen = ClassMarginal(64)
    assert evidence([4], 40, SpearConfig(), seen)[0] == pytest.approx(4 / 64)
    for _ in range(100):
        seen.add(torch.full((40,), 1 / 40), 4)
    assert evidence([4], 40, SpearConfig(), seen)[0] == pytest.approx(1.0, abs=0.01)
