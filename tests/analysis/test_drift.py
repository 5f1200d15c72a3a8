import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.analysis import (
    CLASSIFIER,
    ImageSet,
    accuracy,
    adapted_representations,
    drift,
    placed,
    separability,
    source_representations,
)
from spear_hf.baselines import METHODS
from spear_hf.errors import DataError


def test_without_learning_and_mixing_clean_images_have_not_drifted(net: nn.Module, data: ImageSet) -> None:
    with placed(net, SpearConfig(alpha=0.0)) as model:
        reference = source_representations(model, data)
        seen = list(adapted_representations(model, [data], batch_sizes=(16,), updates=0))
        rows = [row for adapted in seen for row in drift(adapted, reference)]
    assert [adapted.placement for adapted in seen] == ["none", "stem", "stem+1", "early", "deep", "all"]
    assert {row.place for row in rows} == {"0", "1", "2", "3", CLASSIFIER}
    assert all(row.amd == 0 for row in rows)
    assert [row.cka for row in rows] == pytest.approx([1.0] * len(rows), abs=1e-12)


def test_a_placement_moves_its_own_depths_and_what_comes_after(net: nn.Module, data: ImageSet) -> None:
    config = SpearConfig(alpha=0.0, tau=0.0, hard_gate=False)
    with placed(net, config) as model:
        reference = source_representations(model, data)
        looks = {a.placement: a for a in adapted_representations(model, [data], batch_sizes=(16,), updates=2)}
    for name, first in (("stem", 0), ("deep", 3)):
        rows = {row.place: row.amd for row in drift(looks[name], reference)}
        assert [depth for depth in range(4) if rows[str(depth)] > 0] == list(range(first, 4))


def test_mixing_alone_is_a_reference_of_its_own(net: nn.Module, data: ImageSet) -> None:
    with placed(net, SpearConfig(alpha=0.5)) as model:
        looks = list(adapted_representations(model, [data], batch_sizes=(8,), updates=1))
    assert [a.placement for a in looks[:2]] == ["none", "alpha only"]
    assert not torch.equal(looks[0].look.logits, looks[1].look.logits)
    alone = METHODS["bn_adapt"](net, alpha=0.5)
    expected = torch.cat([alone.step(x) for x in data.images.split(8)])
    torch.testing.assert_close(looks[1].look.logits, expected)


def test_the_reference_must_be_of_as_many_images(net: nn.Module, data: ImageSet) -> None:
    few = ImageSet("clean", data.images[:4], data.labels[:4])
    with placed(net, SpearConfig()) as model:
        reference = source_representations(model, few)
        first = next(adapted_representations(model, [data], updates=0))
    with pytest.raises(DataError, match="noise has 16 images, the reference 4; CKA compares the same images"):
        drift(first, reference)


def test_separability_probes_what_enters_the_classifier(net: nn.Module, images: Tensor) -> None:
    data = ImageSet("noise", images, torch.arange(16) % 2)
    with placed(net, SpearConfig()) as model:
        row = separability(next(adapted_representations(model, [data], updates=0)))
    assert row.accuracy == accuracy(net(images).argmax(1), data.labels)
    assert row.gap == row.probe_accuracy - row.accuracy
