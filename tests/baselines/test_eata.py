"""EATA's filter, weight and anchor by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.adapted_parameters import norm_affine
from spear_hf.baselines.eata import Anchored, FilteredEntropy, fisher_information
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.errors import ConfigError, InputError
from tests.builders import batch_of, logits_of_probabilities

SURE, OTHER, UNSURE = [0.94, 0.02, 0.02, 0.02], [0.02, 0.94, 0.02, 0.02], [0.4, 0.2, 0.2, 0.2]


def h(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def test_unreliable_images_are_left_out_and_confident_ones_weigh_more() -> None:
    limit = 0.4 * math.log(4)
    assert h(SURE) < limit < h(UNSURE)
    loss = FilteredEntropy()(batch_of(logits_of_probabilities([SURE, UNSURE])))
    assert loss is not None
    assert loss.item() == pytest.approx(h(SURE) * math.exp(limit - h(SURE)), rel=1e-5)


def test_the_weight_is_a_constant_of_the_gradient() -> None:
    logits = logits_of_probabilities([SURE]).requires_grad_()
    loss = FilteredEntropy()(batch_of(logits))
    assert loss is not None
    log_p = logits.log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum()
    weight = math.exp(0.4 * math.log(4) - h(SURE))
    expected = weight * torch.autograd.grad(entropy, logits)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)


def test_only_what_tells_something_new_is_learned_from_and_averaged() -> None:
    objective = FilteredEntropy(margin=0.5)
    objective(batch_of(logits_of_probabilities([SURE])))
    torch.testing.assert_close(objective.mean, torch.tensor(SURE))
    loss = objective(batch_of(logits_of_probabilities([SURE, OTHER])))
    assert loss is not None
    assert loss.item() == pytest.approx(h(OTHER) * math.exp(0.4 * math.log(4) - h(OTHER)), rel=1e-5)
    torch.testing.assert_close(objective.mean, 0.9 * torch.tensor(SURE) + 0.1 * torch.tensor(OTHER))


def test_nothing_chosen_is_no_step_and_leaves_the_average() -> None:
    objective = FilteredEntropy(margin=0.5)
    assert objective(batch_of(logits_of_probabilities([UNSURE]))) is None
    assert objective.mean is None
    objective(batch_of(logits_of_probabilities([SURE])))
    assert objective(batch_of(logits_of_probabilities([SURE]))) is None
    torch.testing.assert_close(objective.mean, torch.tensor(SURE))


def test_the_anchor_is_the_fisher_weighted_distance_from_the_source() -> None:
    learned = ParameterSet([nn.Parameter(torch.tensor([1.0, 2.0]))])
    learned.put([torch.tensor([1.5, 3.0])])
    objective = Anchored(FilteredEntropy(), strength=10.0)
    objective.information = [torch.tensor([2.0, 0.5])]
    batch = batch_of(logits_of_probabilities([SURE]), learned=learned)
    alone, whole = FilteredEntropy()(batch), objective(batch)
    assert whole is not None
    assert alone is not None
    assert whole.item() - alone.item() == pytest.approx(10 * (2.0 * 0.25 + 0.5 * 1.0))


def test_fisher_information_is_the_mean_squared_gradient_of_batches(net: nn.Module, images: Tensor) -> None:
    adapted = norm_affine(net)
    squares = []
    for x in images.split(8):
        logits = adapted.forward(x)
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        squares.append([g.square() for g in torch.autograd.grad(loss, adapted.learned.parameters)])
    expected = [(a + b) / 2 for a, b in zip(*squares, strict=True)]
    with torch.no_grad():
        found = fisher_information(adapted, images.split(8))
    torch.testing.assert_close(found, expected)


def test_eata_without_source_images_names_the_way_out(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r'none were given; pass source_images= .* or use METHODS\["eta"\]'):
        METHODS["eata"](net)
    with pytest.raises(ConfigError, match="holds no image"):
        METHODS["eata"](net, [])
    with pytest.raises(InputError, match="NaN"):
        METHODS["eata"](net, torch.full((2, 3, 32, 32), float("nan")))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_a_strong_anchor_holds_the_parameters(net: nn.Module, images: Tensor) -> None:
    far = []
    for strength in (0.0, 1e6):
        eata = METHODS["eata"](net, images, threshold=1.0, margin=1.0, strength=strength, learning_rate=0.01)
        for _ in range(5):
            eata.step(images[:8])
        far.append(
            sum(float((p - s).abs().sum().detach()) for p, s in zip(eata.parameters(), eata.learned.start, strict=True))
        )
        eata.unload()
    assert far[1] < 0.5 * far[0]
