"""A learner composed of an objective, an answer and upkeep."""

import torch
from torch import Tensor, nn

from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.optimize import descend
from tests.builders import made


def test_no_step_down_what_is_not_finite() -> None:
    w, unused = nn.Parameter(torch.tensor([0.0])), nn.Parameter(torch.tensor([5.0]))
    optimizer = OptimizerConfig("adam", 0.1).make([w, unused])
    assert descend(w.sum() * float("nan"), optimizer) == "the loss is not finite"
    assert descend(w.abs().sqrt().sum(), optimizer) == "the gradient is not finite"
    assert (w.item(), unused.item(), w.grad, optimizer.state) == (0.0, 5.0, None, {})
    assert descend(w.sum(), optimizer) is None
    assert unused.item() == 5.0


def test_the_record_holds_the_loss_and_the_entropy_of_the_answer(net: nn.Module, images: Tensor) -> None:
    tent = made("tent", net)
    answer = tent.step(images)
    assert tent.last.entropy == float(normalized_entropy(answer).mean())
    assert (tent.last.loss, tent.last.skipped, tent.last.gamma_deviation) != (None, None, 0.0)
