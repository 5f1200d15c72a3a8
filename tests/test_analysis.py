import copy
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.analysis import (
    CLASSIFIER,
    ImageSet,
    accuracy,
    adapted_representations,
    amd,
    answer_online,
    drift,
    find_classifier,
    gate_ablation,
    learn,
    linear_cka,
    look,
    mixing_errors,
    placed,
    placements,
    pooled,
    probe_accuracy,
    probe_features,
    recording,
    scarce_confidence,
    separability,
    source_entropy,
    source_representations,
    without_confident,
)
from spear_hf.analysis.tables import grid, shown, summary
from spear_hf.boundaries import Boundary
from spear_hf.errors import ConfigError, DataError
from spear_hf.methods import METHODS, Source
from spear_hf.objective import normalized_entropy
from tests.conftest import ROOT


@pytest.fixture
def data(images: Tensor) -> ImageSet:
    """Sixteen images of ten classes."""
    return ImageSet("noise", images, torch.arange(16) % 10)


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def a_vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=10).eval()


# --- similarity ------------------------------------------------------------------------------------------------------


def test_amd_is_the_mean_distance_of_channel_means() -> None:
    a = torch.tensor([[0.0, 1.0], [2.0, 3.0]])  # means 1, 2
    b = torch.tensor([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0]])  # means 4, 1
    assert amd(a, b) == (3 + 1) / 2


def test_cka_of_a_tiny_case_by_hand() -> None:
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])  # centered already; A^T A = [[2, 1], [1, 2]]
    b = torch.tensor([[1.0], [0.0], [-1.0]])  # B^T B = 2, B^T A = [2, 1]
    assert linear_cka(a, b) == pytest.approx(5 / (2 * math.sqrt(10)))


def test_cka_does_not_change_under_rotation_scaling_and_shift() -> None:
    a, b = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0))
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))[0]
    assert linear_cka(3.5 * a @ rotation + 7, b) == pytest.approx(linear_cka(a, b), abs=1e-6)
    assert linear_cka(a, a @ rotation) == pytest.approx(1.0, abs=1e-6)
    assert linear_cka(a, b) == pytest.approx(linear_cka(b, a))


def test_cka_changes_when_one_channel_is_scaled() -> None:
    a = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert linear_cka(a, a * torch.tensor([10.0, 1, 1, 1, 1, 1])) < 0.9


def test_cka_of_a_constant_representation_is_nan() -> None:
    assert math.isnan(linear_cka(torch.ones(5, 3), torch.randn(5, 3)))


def test_shapes_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(DataError, match=r"amd got shapes \(4, 3\) and \(4, 2\), it compares \(N, C\) with \(M, C\)"):
        amd(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(DataError, match=r"linear_cka got shapes \(4, 3\) and \(5, 3\).*the same images"):
        linear_cka(torch.zeros(4, 3), torch.zeros(5, 3))


# --- recording -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1), ((2, 20, 3), -1), ((2, 3), 1)])
def test_pooling_leaves_one_vector_an_image(shape: tuple[int, ...], axis: int) -> None:
    z = torch.randn(*shape)
    expected = z.mean([d for d in range(1, z.dim()) if d != axis % z.dim()]) if z.dim() > 2 else z
    torch.testing.assert_close(pooled(z, axis), expected)


def test_a_recording_is_what_a_plain_hook_gives(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net, SpearConfig(boundaries="all"))
    torch.nn.init.constant_(model.rsps()[1][0].beta, 0.3)
    seen: dict[str, Tensor] = {}

    def keep(boundary: Boundary, *call: Any) -> None:
        z = call[1][0] if boundary.where == "in" else call[2]
        seen[boundary.key] = z.mean((2, 3))

    for b in model.boundaries:
        module = net.get_submodule(b.module)
        register = module.register_forward_pre_hook if b.where == "in" else module.register_forward_hook
        register(partial(keep, b))
    with torch.no_grad(), recording(model) as record:
        model(images)
    assert list(record.features()) == ["0", "1", "2", "3"]
    torch.testing.assert_close(record.features(), seen, rtol=1e-6, atol=1e-6)


def test_a_recording_changes_no_logit_and_leaves_no_hook(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net, SpearConfig(boundaries="all"))
    before, hooks = model(images), hooks_of(net)
    with recording(model, classifier="fc"):
        assert hooks_of(net) == hooks + 5
        assert torch.equal(model(images), before)
    assert hooks_of(net) == hooks
    with pytest.raises(RuntimeError, match="stop"), recording(model):
        raise RuntimeError("stop")
    assert hooks_of(net) == hooks


@pytest.mark.parametrize("make", [None, a_vit])
def test_before_the_rsp_and_after_it_differ_by_what_the_rsp_does(make: object, net: nn.Module, images: Tensor) -> None:
    base, x = (a_vit(), torch.randn(2, 3, 160, 160)) if make else (net, images)
    model = get_spear_model(base, SpearConfig(boundaries=(0,), alpha=0.0))
    torch.nn.init.constant_(model.rsps()[0][0].gamma, 2.0)
    torch.nn.init.constant_(model.rsps()[0][0].beta, 0.5)
    found = {}
    for steered in (True, False):
        with torch.no_grad(), recording(model, steered=steered) as record:
            model(x)
        found[steered] = record.features()["0"]
    torch.testing.assert_close(found[True], 2 * found[False] + 0.5)


def test_a_recording_grows_by_the_rows_of_each_batch(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net, SpearConfig(alpha=0.0))
    with torch.no_grad(), recording(model) as record:
        assert record.features() == {}
        for x in images.split(6):
            model(x)
        parts = record.features()
    with torch.no_grad(), recording(model) as record:
        model(images)
    torch.testing.assert_close(parts, record.features(), rtol=1e-4, atol=1e-5)


def test_the_classifier_is_found_and_its_input_makes_the_logits(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net)
    assert find_classifier(model, images[:2]) == "fc"
    seen = look(model, images, 8, "fc")
    torch.testing.assert_close(net.get_submodule("fc")(seen.features[CLASSIFIER]), seen.logits)


def test_a_network_whose_logits_come_from_elsewhere_says_what_to_do(net: nn.Module, images: Tensor) -> None:
    net.fc = nn.Sequential(nn.Linear(24, 10), nn.ReLU())
    with pytest.raises(DataError, match=r"the output of none of its 1 linear layers; .*classifier='path.of.module'"):
        find_classifier(get_spear_model(net), images[:2])


# --- probe -----------------------------------------------------------------------------------------------------------


def test_a_probe_finds_what_is_linear_and_nothing_where_nothing_is() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    noise = torch.randn(200, 8, generator=random)
    assert probe_accuracy(nn.functional.one_hot(labels).float() * 10 + noise[:, :4], labels) == 100
    assert probe_accuracy(noise, labels) < 40


def test_the_probe_gap_is_zero_on_equal_features() -> None:
    labels = torch.arange(60) % 3
    logits = nn.functional.one_hot(labels).float()
    found = probe_features(logits, logits, labels)
    assert (found.accuracy, found.probe_accuracy, found.gap) == (100, 100, 0)


def test_the_probe_gap_is_what_the_classifier_misses() -> None:
    labels = torch.arange(60) % 3
    features = nn.functional.one_hot(labels).float()
    assert probe_features(features, features.roll(1, dims=1), labels).gap == 100


def test_a_probe_says_what_it_needs() -> None:
    with pytest.raises(DataError, match=r"features \(6, 2\) and labels \(5,\) do not fit"):
        probe_accuracy(torch.zeros(6, 2), torch.zeros(5, dtype=torch.long))
    with pytest.raises(DataError, match="the rarest with 1; a probe with 5 folds needs 2 classes of at least 5 images"):
        probe_accuracy(torch.zeros(6, 2), torch.tensor([0, 0, 0, 0, 0, 1]))


def test_a_probe_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ConfigError, match=r'needs scikit-learn.*pip install "spear-hf\[analysis\]"'):
        probe_accuracy(torch.randn(20, 2), torch.arange(20) % 2)


def test_accuracy_is_in_percent() -> None:
    assert accuracy(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3])) == 75


# --- placements ------------------------------------------------------------------------------------------------------


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


# --- drift -----------------------------------------------------------------------------------------------------------


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


# --- learning, gate, scarcity, alpha ---------------------------------------------------------------------------------


def test_learn_makes_as_many_steps_as_asked_and_begins_again(net: nn.Module, images: Tensor) -> None:
    spear = Spear(get_spear_model(net))
    spear.step(images)
    learn(spear, images, 8, 5)
    assert spear.num_steps == 5
    state = spear.model.snapshot()
    spear.reset()
    for x in (images[:8], images[8:]) * 2 + (images[:8],):
        spear.step(x)
    assert all(torch.equal(state[key], value) for key, value in spear.model.snapshot().items())


def test_an_online_answer_counts_errors_and_skipped_batches(net: nn.Module, data: ImageSet) -> None:
    run = answer_online(Spear(get_spear_model(copy.deepcopy(net), SpearConfig(tau=1.0, alpha=0.0))), data, 8)
    assert run.skipped == 1
    assert (
        run.error
        == answer_online(Source(net), data, 16).error
        == 100 - accuracy(net(data.images).argmax(1), data.labels)
    )


def test_source_entropy_is_that_of_the_logits(net: nn.Module, images: Tensor) -> None:
    torch.testing.assert_close(source_entropy(net, images), normalized_entropy(net(images)))


def test_the_confident_are_taken_away_in_order(data: ImageSet) -> None:
    left = without_confident(data, torch.arange(16) / 16, 0.625)
    assert left.labels.tolist() == data.labels[10:].tolist()
    assert torch.equal(left.images, data.images[10:])


def test_no_images_are_refused(net: nn.Module, data: ImageSet) -> None:
    with pytest.raises(DataError, match="noise has no images; at least one is needed"):
        answer_online(Source(net), without_confident(data, torch.zeros(16), 0.5), 8)


def test_a_shut_gate_is_mixing_alone_and_an_open_one_makes_no_difference(net: nn.Module, data: ImageSet) -> None:
    def spear(**settings: object) -> object:
        return lambda base: Spear(get_spear_model(base, SpearConfig(**settings)))  # pyright: ignore[reportArgumentType]

    shut = next(gate_ablation(net, [data], spear(tau=1.0), spear(tau=1.0, hard_gate=False), batch_sizes=[8]))  # pyright: ignore[reportArgumentType]
    assert (shut.skipped, shut.gain) == (1, shut.without_gate - shut.with_gate)
    alone = METHODS["bn_adapt"](copy.deepcopy(net), alpha=SpearConfig().alpha)
    assert shut.with_gate == answer_online(alone, data, 8).error
    always = next(gate_ablation(net, [data], spear(tau=0.0), spear(tau=0.0, hard_gate=False), batch_sizes=[8]))  # pyright: ignore[reportArgumentType]
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


# --- tables and the command ------------------------------------------------------------------------------------------


def test_a_grid_holds_means_in_the_order_of_the_rows(net: nn.Module, data: ImageSet) -> None:
    rows = list(mixing_errors(net, [data, data], SpearConfig(), alphas=(0.5, 0.0), batch_sizes=(16,), updates=0))
    found = grid(rows, "alpha", "batch_size", "learned")
    assert (found.rows, found.columns) == ([0.5, 0.0], [16])
    assert found.row(0.0) == [rows[1].learned]
    assert math.isnan(found.row("nothing")[0])
    means = summary(rows, "alpha", ("learned", "unlearned"), mean=True)
    assert means.cells["mean", "learned"] == (rows[0].learned + rows[1].learned) / 2
    assert means.only(["learned"]).row(0.5) == [rows[0].learned]
    assert shown(means, "title", "alpha").row_count == 3


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from spear_hf.analysis.figures import lines, save_panels

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'needs matplotlib.*pip install "spear-hf\[analysis\]"'):
        save_panels(tmp_path / "x.png", {}, lines, y="", x="")


@pytest.mark.slow
def test_every_command_leaves_rows_and_a_figure(tmp_path: Path) -> None:
    words = ["amd", "cka", "probe", "gate", "scarce", "alpha", "--corruptions", "fog", "--limit", "256", "--updates"]
    words += ["1", "--batch_sizes", "64", "--alphas", "0.0", "0.5", "--output", str(tmp_path), "--device", "cpu"]
    command = [sys.executable, str(ROOT / "examples" / "analyze.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("amd", "cka", "probe", "gate", "scarce", "alpha"):
        assert (tmp_path / f"{name}.json").stat().st_size > 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"{name}" in done.stdout
