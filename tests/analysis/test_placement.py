import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig
from spear_hf.analysis import (
    CLASSIFIER,
    Adapted,
    ImageSet,
    Outputs,
    accuracy,
    adapted_representations,
    drift,
    placed,
    placements,
    separability,
    source_representations,
)
from spear_hf.baselines import METHODS
from spear_hf.errors import ConfigError, DataError
from tests.builders import hooks_of


def test_the_five_placements_by_hand() -> None:
    assert placements(3) == {"stem": (0,), "stem+1": (0, 1), "early": (0, 1, 2), "deep": (3,), "all": (0, 1, 2, 3)}
    assert placements(4)["early"] == (0, 1, 2)
    assert placements(4)["deep"] == (3, 4)


@pytest.mark.parametrize("last", range(3, 13))
def test_early_and_deep_are_all_and_no_two_placements_are_one(last: int) -> None:
    found = placements(last)
    assert found["early"] + found["deep"] == found["all"]
    assert len(set(found.values())) == 5


def test_too_few_boundaries_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"boundaries 0\.\.2 are too few for five placements, at least 0\.\.3"):
        placements(2)


def test_placed_holds_one_adapter_for_each_and_leaves_the_base_as_it_was(net: nn.Module, images: Tensor) -> None:
    before = net(images)
    with placed(net, SpearConfig(alpha=0.5)) as model:
        assert {name: tuple(model.rsps(name)) for name in model.peft_config} == placements(3)
    assert hooks_of(net) == 0
    assert torch.equal(net(images), before)


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
        found = {a.placement: a for a in adapted_representations(model, [data], batch_sizes=(16,), updates=2)}
    for name, first in (("stem", 0), ("deep", 3)):
        rows = {row.place: row.amd for row in drift(found[name], reference)}
        assert [depth for depth in range(4) if rows[str(depth)] > 0] == list(range(first, 4))


def test_mixing_alone_is_a_reference_of_its_own(net: nn.Module, data: ImageSet) -> None:
    with placed(net, SpearConfig(alpha=0.5)) as model:
        found = list(adapted_representations(model, [data], batch_sizes=(8,), updates=1))
    assert [a.placement for a in found[:2]] == ["none", "alpha only"]
    assert not torch.equal(found[0].outputs.logits, found[1].outputs.logits)
    alone = METHODS["bn_adapt"](net, alpha=0.5)
    expected = torch.cat([alone.step(x) for x in data.images.split(8)])
    torch.testing.assert_close(found[1].outputs.logits, expected)


def test_the_reference_must_be_of_as_many_images(net: nn.Module, data: ImageSet) -> None:
    few = ImageSet("clean", data.images[:4], data.labels[:4])
    with placed(net, SpearConfig()) as model:
        reference = source_representations(model, few)
        first = next(adapted_representations(model, [data], updates=0))
    with pytest.raises(DataError, match="noise has 16 images, the reference 4; CKA compares the same images"):
        drift(first, reference)


@pytest.mark.parametrize(("shift", "gap"), [(0, 0), (1, 100)])
def test_the_probe_gap_is_what_the_classifier_misses(shift: int, gap: float) -> None:
    labels = torch.arange(60) % 3
    z = nn.functional.one_hot(labels).float()
    data = ImageSet("noise", torch.zeros(60, 3, 2, 2), labels)
    assert separability(Adapted("stem", 16, data, Outputs(z.roll(shift, dims=1), {"classifier": z}))).gap == gap


def test_separability_probes_what_enters_the_classifier(net: nn.Module, images: Tensor) -> None:
    data = ImageSet("noise", images, torch.arange(16) % 2)
    with placed(net, SpearConfig()) as model:
        row = separability(next(adapted_representations(model, [data], updates=0)))
    assert row.accuracy == accuracy(net(images).argmax(1), data.labels)
    assert row.gap == row.probe_accuracy - row.accuracy
