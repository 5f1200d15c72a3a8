import copy

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.analysis import (
    GateRow,
    ImageSet,
    accuracy,
    answer_online,
    gate_ablation,
    mixing_errors,
    scarce_confidence,
    source_entropy,
    without_confident,
)
from spear_hf.baselines import METHODS, Source
from spear_hf.errors import ConfigError, DataError
from spear_hf.learning.objective import normalized_entropy
from tests.builders import a_vit, hooks_of


def test_source_entropy_is_that_of_the_logits(net: nn.Module, images: Tensor) -> None:
    torch.testing.assert_close(source_entropy(net, images), normalized_entropy(net(images)))


def test_the_confident_are_taken_away_in_order(data: ImageSet) -> None:
    left = without_confident(data, torch.arange(16) / 16, 0.625)
    assert left.labels.tolist() == data.labels[10:].tolist()
    assert torch.equal(left.images, data.images[10:])


def test_a_shut_gate_is_mixing_alone_and_an_open_one_makes_no_difference(net: nn.Module, data: ImageSet) -> None:
    def row(tau: float) -> GateRow:
        gated, free = (
            lambda base, hard=hard: Spear(get_spear_model(base, SpearConfig(tau=tau, hard_gate=hard, class_skew=False)))
            for hard in (True, False)
        )
        return next(gate_ablation(net, [data], gated, free, batch_sizes=[8]))

    shut, always = row(1.0), row(0.0)
    assert (shut.skipped, shut.gain) == (1, shut.without_gate - shut.with_gate)
    alone = METHODS["bn_adapt"](copy.deepcopy(net), alpha=SpearConfig().alpha)
    assert shut.with_gate == answer_online(alone, data, 8).error
    assert (always.skipped, always.gain) == (0, 0)
    assert hooks_of(net) == 0


def test_scarcity_takes_images_from_every_method_alike(net: nn.Module, data: ImageSet) -> None:
    entropy = source_entropy(net, data.images)
    middle = float(entropy.median())
    rows = list(
        scarce_confidence(net, [data], {"source": Source, "tent": METHODS["tent"]}, (0.0, middle), batch_size=4)
    )
    assert [(r.method, r.images) for r in rows] == [("source", 16), ("tent", 16), ("source", 9), ("tent", 9)]
    left = without_confident(data, entropy, middle)
    assert rows[2].error == 100 - accuracy(net(left.images).argmax(1), left.labels)


def test_a_threshold_that_leaves_no_batch_is_passed_over_and_a_wrong_one_refused(
    net: nn.Module, data: ImageSet
) -> None:
    net.get_submodule("fc").weight.data.mul_(100)  # pyright: ignore
    assert not list(scarce_confidence(net, [data], {"source": Source}, (0.999,)))
    with pytest.raises(DataError, match=r"thresholds=\[1.5\] are not allowed; entropies are in \[0, 1\)"):
        list(scarce_confidence(net, [data], {"source": Source}, (1.5,)))


def test_alpha_zero_without_updates_is_the_source_at_every_batch_size(net: nn.Module, data: ImageSet) -> None:
    cells = list(mixing_errors(net, [data], SpearConfig(), alphas=(0.0, 0.5), batch_sizes=(4, 16), updates=0))
    source = 100 - accuracy(net(data.images).argmax(1), data.labels)
    assert [(c.alpha, c.batch_size) for c in cells] == [(0.0, 4), (0.0, 16), (0.5, 4), (0.5, 16)]
    assert [c.learned for c in cells[:2]] == [c.unlearned for c in cells[:2]] == [source, source]
    assert hooks_of(net) == 0


def test_alpha_needs_batch_norms() -> None:
    vit = a_vit()
    data = ImageSet("noise", torch.randn(2, 3, 160, 160), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ConfigError, match="has no BatchNorm, so alpha=0 changes nothing"):
        list(mixing_errors(vit, [data], SpearConfig()))
    assert hooks_of(vit) == 0
