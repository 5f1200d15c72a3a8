"""Failures that users of test-time adaptation have reported in public, and the tests that guard against each kind.

`HELD` maps each kind of failure to its tests. The tests that are in no other file are below. Tests of broken or hostile
input are in test_attacks.py and test_fuzz.py.
"""

import ast
import copy
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from spear_hf import (
    METHODS,
    Guard,
    GuardPolicy,
    Spear,
    SpearConfig,
    get_spear_model,
    load_base_model,
    load_processor,
)
from spear_hf.data.corruptions import corrupt_batch, sample_rng
from tests.builders import learner, made, steered
from tests.conftest import ROOT

OPEN = SpearConfig(tau=0.0, learning_rate=0.01, boundaries="all")

HELD: dict[str, tuple[str, ...]] = {
    "dropout and stochastic depth are active while adapting (tent#17)": (
        "test_train_called_on_the_base_changes_no_answer_and_no_buffer",
        "test_the_same_batch_twice_gives_the_same_logits_after_train",
    ),
    "eval() does not disable adaptation (ttt-plus-plus#8)": (
        "test_modes_do_not_decide_whether_we_learn",
        "test_calling_never_learns",
    ),
    "a later train() unfreezes batch norms (gt-pyg#112)": (
        "test_train_called_on_the_base_changes_no_answer_and_no_buffer",
    ),
    "injected modules are in another mode than the base (peft#3753)": ("test_what_is_added_has_one_mode",),
    "a reloaded adapter answers differently (peft#1732)": (
        "test_a_loaded_adapter_answers_bit_for_bit_as_the_saved_one",
        "test_base_weights_and_buffers_never_move",
    ),
    "statistics depend on mode, tracking and None (pytorch#38084)": (
        "test_statistics_are_mixed_in_both_modes_and_only_where_there_are_any",
        "test_mixed_statistics_equal_those_computed_by_hand",
    ),
    "a last batch of one (scvi-tools#2314, fastai#1352)": ("test_one_value_a_channel_is_answered_with_the_source",),
    "no gradient inside inference_mode (Lightning#14497, #19910)": (
        "test_step_learns_whatever_grad_mode_the_caller_is_in",
    ),
    "did the optimizer step? (pytorch#67590)": (
        "test_the_record_holds_what_the_step_did",
        "test_a_confident_batch_is_skipped_and_the_record_says_why",
        "test_a_gradient_that_is_not_finite_moves_nothing",
    ),
    "gathered metrics count images twice or drop them (accelerate#952, #575, #961, #3013)": (
        "test_every_process_reports_each_image_once",
    ),
    "state updated on one rank only (ema-pytorch#9)": ("test_all_processes_hold_the_same_bits",),
    "two forwards before one backward fail under DDP (pytorch#22095, #175024)": (
        "test_two_forwards_before_one_backward",
        "test_a_wrapper_for_data_parallel_training_changes_nothing",
    ),
    "the wrong mean and std (SAR#5, FOA#2, vida#14)": (
        "test_a_timm_model_gets_what_timms_own_transform_makes",
        "test_normalised_images_are_not_normalised_twice",
        "test_unit_range_floats_are_refused_with_the_conversion",
    ),
    "[0,1] augmentations on normalised tensors (ttab#2)": (
        "test_augmented_views_stay_in_range_and_come_from_their_own_seed",
        "test_a_model_that_carries_no_normalisation_needs_it_said",
    ),
    "5,000 images instead of 50,000 (RobustBench#92, #47, #73)": ("test_a_limit_is_met_or_refused",),
    "all images are held in one tensor (RobustBench#129)": (
        "test_memory_is_flat_and_drift_bounded_over_thousands_of_steps",
        "test_arrays_travel_to_workers_as_file_names",
    ),
    "wrong severity slices, 15 or 19 corruptions (robustness#21, #57, #36, #60)": (
        "test_severity_s_of_an_array_is_its_sth_fifth",
        "test_all_is_exactly_the_fifteen_in_paper_order",
    ),
    "regenerated images differ from official ones (TTAC#3)": (
        "test_provenance_tells_made_textures_from_official_ones",
        "test_a_preset_for_corrupted_images_is_refused",
    ),
    "results that cannot be rerun (mariodoebler#15, #22)": (
        "test_describe_names_all_that_a_rerun_needs",
        "test_a_report_is_read_back_as_it_was_written",
    ),
    "a preset of another backbone (mariodoebler#5)": (
        "test_the_base_is_built_at_the_commit_it_was_learned_on",
        "test_another_base_by_name_is_held_against_the_fingerprint",
    ),
    "reset restores only a part (cotta#4, EATA, SAR, DeYO)": (
        "test_reset_restores_every_bit",
        "test_the_same_stream_after_reset_gives_the_same_bits",
        "test_every_method_can_be_guarded_and_keeps_the_contract",
    ),
    "results depend on the batch size (tent#4, #9)": ("test_defaults_hold_from_batch_1_to_256",),
    "another checkpoint than the reported one (ttab#12, #15, MECTA#1)": (
        "test_other_weights_of_the_same_architecture_are_refused",
        "test_another_architecture_is_refused",
    ),
    "accuracy degrades late in a long run (ContinualTTA_ObjectDetection#9)": (
        "test_memory_is_flat_and_drift_bounded_over_thousands_of_steps",
        "test_drift_is_rolled_back_then_reset_then_the_source_answers_until_the_method_behaves",
    ),
    "the order is lost after a resume (datasets#6673, #5454)": (
        "test_a_resumed_stream_yields_the_remaining_batches",
        "test_workers_change_nothing",
        "test_a_stream_killed_twice_yields_the_bits_of_an_unbroken_one",
    ),
    "gradient checkpointing gives no gradient on a frozen base (transformers#23170, #25841, peft#80)": (
        "test_gradient_checkpointing_changes_no_gradient",
    ),
    "a frozen tower keeps its activations (ms-swift#10214)": (
        "test_nothing_below_the_first_rsp_is_kept",
        "test_a_stem_rsp_of_a_resnet_keeps_a_fraction",
    ),
    "sharing between devices (awesome-test-time-adaptation#13)": (
        "test_a_weighted_adapter_is_the_sum_of_distances_over_all_boundaries",
        "test_a_pushed_adapter_answers_bit_for_bit_after_the_round_trip",
    ),
}


@pytest.mark.parametrize("kind", HELD)
def test_every_kind_is_held_by_tests_that_are_there(kind: str) -> None:
    assert HELD[kind]
    assert set(HELD[kind]) <= all_tests()


@cache
def all_tests() -> frozenset[str]:
    """The names of all test functions of this suite."""
    return frozenset(name for file in (ROOT / "tests").rglob("test_*.py") for name in functions(file))


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_train_called_on_the_base_changes_no_answer_and_no_buffer(name: str, net: nn.Module, images: Tensor) -> None:
    """`net` has dropout and batch norms, and its owner may call train() at any time."""
    images = images[:4]
    expected = made(name, copy.deepcopy(net)).step(images)
    method, before = made(name, net), {k: v.clone() for k, v in net.state_dict().items()}
    net.train()
    torch.testing.assert_close(method.step(images), expected, rtol=0, atol=0)
    method.reset()
    for key, value in method.unload().state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize("mode", [True, False])
def test_modes_do_not_decide_whether_we_learn(net: nn.Module, images: Tensor, mode: bool) -> None:
    tta = learner(net, OPEN)
    tta.model.train(mode)
    before = tta.model.snapshot()
    tta.model(images)
    torch.testing.assert_close(tta.model.snapshot(), before, rtol=0, atol=0)
    tta.step(images)
    assert tta.last is not None
    assert tta.last.adapted
    assert tta.last.gamma_deviation > 0


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_added_has_one_mode(net: nn.Module, images: Tensor, mode: bool) -> None:
    """Nothing depends on `training`: the base is kept in evaluation mode, and RSPs act alike in both."""
    model = steered(net.train(mode), OPEN)
    expected = model(images)
    model.add_adapter("other", OPEN)
    model.train(mode)
    assert not any(m.training for m in model.get_base_model().modules())
    assert torch.equal(model(images), expected)
    assert all(m.training is mode for m in model.unload().modules())


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tracked", [True, False])
def test_statistics_are_mixed_in_both_modes_and_only_where_there_are_any(
    net: nn.Module, images: Tensor, tracked: bool, alpha: float, mode: bool
) -> None:
    """A norm without running statistics normalises by the batch in either mode, whatever alpha is."""
    images = images[:4]
    if not tracked:
        for norm in [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]:
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    batch_alone = copy.deepcopy(net).train()
    batch_alone.get_submodule("dropout").eval()
    expected = net(images) if tracked and alpha == 0.0 else batch_alone(images) if alpha == 1.0 or not tracked else None
    model = steered(net.train(mode), SpearConfig(alpha=alpha, boundaries="all"))
    assert model.has_batch_norms is tracked
    if expected is not None:
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(model(images), model.train()(images))


# --- graphs and memory -----------------------------------------------------------------------------------------------


def test_two_forwards_before_one_backward(net: nn.Module, images: Tensor) -> None:
    """Two graphs over the same hooks and parameters: their gradients add up, as if each were alone."""
    model = steered(net, OPEN)
    parameters, halves = list(model.adapter_parameters()), (images[:8], images[8:])
    together = torch.autograd.grad(sum(model(x).square().mean() for x in halves), parameters)  # pyright: ignore[reportCallIssue, reportArgumentType]
    alone = [torch.autograd.grad(model(x).square().mean(), parameters) for x in halves]
    assert all(bool(g.any()) for g in together)
    torch.testing.assert_close(together, tuple(a + b for a, b in zip(*alone, strict=True)))


def test_nothing_below_the_first_rsp_is_kept(net: nn.Module, images: Tensor) -> None:
    model, kept = steered(net, SpearConfig(boundaries=(2,))), []
    weights = {p.data_ptr() for p in model.parameters()}
    with saved_tensors_hooks(lambda t: kept.append((tuple(t.shape), t.data_ptr())) or t, lambda t: t):
        assert model(images).requires_grad
    shapes = [shape for shape, place in kept if place not in weights and len(shape) == 4]
    assert shapes
    assert all(h <= 16 for _, _, h, _ in shapes)  # stem and first stage are 32 x 32


@pytest.mark.slow
def test_memory_is_flat_and_drift_bounded_over_thousands_of_steps(net: nn.Module) -> None:
    guard = Guard(learner(net, OPEN), GuardPolicy(margin=1.0, max_entropy_rise=1.0, max_collapse=1.0))
    process, generator, used = psutil.Process(), torch.Generator().manual_seed(0), []
    farthest = 0.0
    for step in range(3000):
        shift = 2 * (step // 100 % 3)  # another domain every 100 steps
        guard.step(torch.randn(4, 3, 32, 32, generator=generator) * 1.5 + shift)
        assert guard.last is not None
        farthest = max(farthest, guard.last.gamma_deviation, guard.last.beta_deviation)
        if step % 100 == 99:
            used.append(process.memory_info().rss / 2**20)
    assert max(used[20:]) - max(used[5:10]) < 8  # MB; states, graphs or records that accumulate take more
    assert farthest < 4


# --- batch sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4, 32, 256])
@pytest.mark.parametrize("name", ["fog", "pixelate"])
def test_defaults_hold_from_batch_1_to_256(name: str, batch_size: int, embedded: Path) -> None:
    """Far better where the source is bad, and hardly worse where it is good.

    With one image at a time SPeaR alone is worse than the source on fog; the guard prevents that.
    """
    base = load_base_model(str(embedded / "resnet"))
    rows = Dataset.from_parquet(str(embedded / "test.parquet")).select(range(256)).with_format("torch")
    pixels = torch.stack([image.reshape(28, 28, 1).expand(28, 28, 3) for image in rows["image"]])
    draws = [sample_rng(0, "cifar", name, 5, i) for i in range(256)]
    x, labels = load_processor(base)(corrupt_batch(pixels, name, 5, draws, "cifar")), torch.as_tensor(rows["label"])
    with torch.no_grad():
        source = 100 * float((base(x).logits.argmax(1) != labels).float().mean())
    tta = Guard(Spear(get_spear_model(base)))
    answers = torch.cat([tta.step(part).argmax(1) for part in x.split(batch_size)])
    error = 100 * float((answers != labels).float().mean())
    assert error < (source - 3 if name == "fog" and batch_size > 1 else source + 5)
