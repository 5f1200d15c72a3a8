"""The promises of TTAMethod, for every row of METHODS, SPeaR included: a new method is tested by being there."""

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, get_spear_model
from spear_hf.baselines import METHODS, MethodFactory
from spear_hf.baselines.losses import Batch
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.baselines.roid import PriorCorrection
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError, InputError, LaunchError, SpearError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup
from tests import builders
from tests.builders import LEARNERS, TwoStages

RIVALS = [name for name in LEARNERS if name != "spear"]
SKIPPED: dict[str, Any] = {name: {"skip": ("layers.1",)} for name in ("sar", "deyo")}
"""What "last_stage" is, so that not every test looks for the stages."""


def made(name: str, net: nn.Module, **options: Any) -> Any:
    return builders.made(name, net, **(SKIPPED.get(name, {}) | options))


def batch_norms_on_batch(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network under batch statistics, by torch's own training mode."""
    own = copy.deepcopy(net).eval()
    for m in own.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.train()
    return own


def mixed(net: nn.Module, alpha: float = 0.5) -> Callable[[Tensor], Tensor]:
    return METHODS["bn_adapt"](copy.deepcopy(net), alpha=alpha).step


UNADAPTED: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "source": lambda net: copy.deepcopy(net).eval(),
    "bn_adapt": mixed,
    "spear": lambda net: Spear(get_spear_model(copy.deepcopy(net)), learning_rate=0.0).step,
    "rotta": lambda net: copy.deepcopy(net).eval(),
}
"""What a method answers before it has learned anything; under batch statistics if it has no row."""


def corrected(logits: Tensor) -> Tensor:
    return PriorCorrection().answer(Batch(logits, logits, lambda x: x, ParameterSet([]), 1, logits))


ANSWERS: dict[str, Callable[[Tensor], Tensor]] = {"roid": corrected, "cmf": corrected}
"""What a method makes of these logits, if it answers otherwise."""


def state_of(net: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items()}


def flags_of(net: nn.Module) -> list[Any]:
    return [m.training for m in net.modules()] + [p.requires_grad for p in net.parameters()]


def hooks_of(net: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())


def learned_in(state: dict[str, Any]) -> list[Tensor]:
    """The learned values in the state of a rival or of SPeaR; empty for a method that learns nothing."""
    return state.get("learned", list(state.get("rsp", {}).values()))


def assert_same(found: Any, expected: Any) -> None:
    """Every bit of two states."""
    if isinstance(expected, Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def drawn() -> nn.Module:
    torch.manual_seed(0)
    model = TwoStages()
    for _ in range(3):
        model(torch.randn(8, 3, 16, 16) * 2 + 1)
    return model.eval()


@pytest.fixture
def net(drawn: nn.Module) -> nn.Module:
    """A small network whose running statistics are not the initial ones."""
    return copy.deepcopy(drawn)


@pytest.fixture
def stream() -> list[Tensor]:
    """Four batches of 6 small images, the last one short."""
    g = torch.Generator().manual_seed(2)
    return [torch.randn(n, 3, 12, 12, generator=g) * 1.5 - 0.5 for n in (6, 6, 6, 3)]


@pytest.fixture
def images(stream: list[Tensor]) -> Tensor:
    """The first of them."""
    return stream[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_verbs_and_sees_no_labels(name: str, net: nn.Module) -> None:
    method = made(name, net)
    assert isinstance(method, TTAMethod)
    parameters = list(inspect.signature(method.step).parameters)
    assert parameters[:2] == ["x", "pixel_values"]
    assert "labels" not in parameters


@pytest.mark.parametrize("name", METHODS)
def test_the_first_answer_is_the_unadapted_one(name: str, net: nn.Module, images: Tensor) -> None:
    expected = UNADAPTED.get(name, batch_norms_on_batch)(net)(images)
    expected = ANSWERS.get(name, lambda logits: logits)(expected)
    method = made(name, net)
    answer = method.step(images)
    assert not answer.requires_grad
    torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-3 if name == "buffer" else 1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_stream_after_reset_gives_the_same_bits(name: str, net: nn.Module, stream: list[Tensor]) -> None:
    method = made(name, net)
    first, state = [method.step(x) for x in stream], method.state_dict()
    torch.manual_seed(99)  # nothing may be drawn from the global generator
    method.reset()
    assert_same([method.step(x) for x in stream], first)
    assert_same(method.state_dict(), state)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_learns(name: str, net: nn.Module, stream: list[Tensor]) -> None:
    method = made(name, net)
    before = [p.detach().clone() for p in method.parameters()]
    for x in stream[:2]:
        method.step(x)
    assert any(not torch.equal(p, b) for p, b in zip(method.parameters(), before, strict=True))
    assert all(p.grad is None for p in method.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_the_global_generator_is_left_alone(name: str, net: nn.Module, images: Tensor) -> None:
    before = torch.get_rng_state()
    made(name, net).step(images)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", METHODS)
def test_odd_batches_stay_finite(name: str, net: nn.Module, images: Tensor) -> None:
    one_image, equal_frames, equal_pixels = images[:1], images[:1].expand(4, -1, -1, -1), images * 0 + 1
    method = made(name, net)
    for x in (one_image, equal_frames, equal_pixels):
        method.reset()
        for _ in range(3):
            assert bool(torch.isfinite(method.step(x)).all())
        assert all(bool(torch.isfinite(p).all()) for p in method.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_with_nan_is_refused_and_changes_nothing(name: str, net: nn.Module, images: Tensor) -> None:
    method = made(name, net)
    method.step(images)
    before = method.state_dict(), state_of(net)
    bad = images.clone()
    bad[3, 0, 0, 0] = float("nan")
    with pytest.raises(InputError, match=r"NaN or infinity in images \[3\]"):
        method.step(bad)
    assert_same((method.state_dict(), state_of(net)), before)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_unload_gives_back_every_bit(name: str, training: bool, net: nn.Module, stream: list[Tensor]) -> None:
    net.train(training)
    stream = stream[::3]  # a whole batch and the short one
    next(net.parameters()).requires_grad_(False)
    before = state_of(net), flags_of(net), hooks_of(net)
    method = made(name, net)
    for x in stream:
        method.step(x)
    assert method.unload() is net
    assert_same((state_of(net), flags_of(net), hooks_of(net)), before)


@pytest.mark.parametrize("name", METHODS)
def test_only_parameters_change_while_it_learns(name: str, net: nn.Module, stream: list[Tensor]) -> None:
    method = made(name, net)
    learned = {id(p) for p in method.parameters()}
    mine = {n for n, p in net.named_parameters() if id(p) in learned}
    before = state_of(net)
    for x in stream[:2]:
        method.step(x)
    assert_same({k: v for k, v in state_of(net).items() if k not in mine}, {k: before[k] for k in before.keys() - mine})


@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_from_a_file_with_the_same_bits(
    name: str, net: nn.Module, stream: list[Tensor], tmp_path: Path
) -> None:
    other = made(name, copy.deepcopy(net))
    method, folder = made(name, net), Checkpoints(tmp_path, {})
    for x in stream[:2]:
        method.step(x)
    folder.save(2, {"method": method})
    expected = [method.step(x) for x in stream[2:]], method.state_dict()
    other.step(stream[3])
    assert folder.resume(ProcessGroup(), {"method": other}) == 2
    assert_same([other.step(x) for x in stream[2:]], expected[0])
    assert_same(learned_in(other.state_dict()), learned_in(expected[1]))
    other.reset()
    method.reset()
    assert_same(other.step(stream[0]), method.step(stream[0]))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_state_of_another_configuration_is_refused(name: str, net: nn.Module, images: Tensor) -> None:
    other = made(name, copy.deepcopy(net), learning_rate=0.02)
    other.step(images)
    method = made(name, net)
    before = method.state_dict()
    with pytest.raises(ConfigError, match=r"another configuration .*learning_rate'?: 0\.02.*, here .*0\.01"):
        method.load_state_dict(other.state_dict())
    assert_same(method.state_dict(), before)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_state_that_is_not_finite_is_refused(name: str, net: nn.Module, images: Tensor) -> None:
    method = made(name, net)
    method.step(images)
    before, state = method.state_dict(), method.state_dict()
    learned_in(state)[0][...] = float("nan")
    with pytest.raises(SpearError, match=r"not finite.*; resume from an earlier one"):
        method.load_state_dict(state)
    assert_same(method.state_dict(), before)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_learns_the_same_whatever_grad_mode_the_caller_is_in(name: str, net: nn.Module, images: Tensor) -> None:
    method = made(name, net)
    expected = [method.step(images) for _ in range(2)]
    for mode in (torch.no_grad, torch.inference_mode):
        method.reset()
        with mode():
            x = images + 0
            assert_same([method.step(x) for _ in range(2)], expected)


@pytest.mark.parametrize("name", LEARNERS)
def test_dropout_stays_off_whatever_train_was_called(name: str, net: nn.Module, images: Tensor) -> None:
    expected = made(name, copy.deepcopy(net)).step(images)
    method = made(name, net)
    net.train()
    assert_same(method.step(images), expected)


@pytest.mark.parametrize("name", LEARNERS)
def test_logits_that_are_not_finite_teach_nothing(name: str, net: nn.Module, images: Tensor) -> None:
    method = made(name, net)
    with torch.no_grad():
        next(p for p in net.fc.parameters())[0] = float("inf")  # pyright: ignore
    before = [p.detach().clone() for p in method.parameters()]
    method.step(images)
    assert_same([p.detach() for p in method.parameters()], before)
    assert not method.last.adapted


@pytest.mark.parametrize("name", RIVALS)
def test_several_processes_are_refused(name: str, net: nn.Module) -> None:
    class Two:
        num_processes, process_index, device, distributed_type = 2, 0, torch.device("cpu"), "MULTI_CPU"

    before = flags_of(net), hooks_of(net)
    with pytest.raises(LaunchError, match="learns from one process, 2 run"):
        made(name, net, accelerator=Two())
    assert (flags_of(net), hooks_of(net)) == before


@pytest.mark.parametrize("name", LEARNERS)
def test_the_record_says_what_happened(name: str, net: nn.Module, stream: list[Tensor]) -> None:
    method = made(name, net)
    assert method.last is None
    for x in stream:
        method.step(x)
    assert isinstance(method.last, StepRecord)
    assert (method.last.step, method.last.batch_size) == (3, 3)
    assert method.last.adapted is (method.last.skipped is None)
    assert 0 <= method.last.entropy <= 1


def test_source_answers_as_the_model(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    assert torch.equal(METHODS["source"](net.train()).step(images), expected)


def test_bn_adapt_without_alpha_is_the_source(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    assert torch.equal(METHODS["bn_adapt"](net, alpha=0.0).step(images), expected)
    with pytest.raises(ConfigError, match="alpha=2"):
        METHODS["bn_adapt"](net, alpha=2)


# --- rows ------------------------------------------------------------------------------------------------------------


def test_spear_takes_fields_of_its_configuration(net: nn.Module) -> None:
    tta: Any = METHODS["spear"](net, tau=0.1, boundaries=(0,))
    assert tta.config == SpearConfig(tau=0.1, boundaries=(0,))
    with pytest.raises(ConfigError, match="did you mean tau"):
        METHODS["spear"](net, taus=0.1)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_names_hyper_parameters_that_its_method_takes(name: str) -> None:
    row: Any = METHODS[name]
    assert isinstance(row, MethodFactory)
    assert set(row.hyperparameters({})) == set(row.names)
    inspect.signature(row.make).bind(nn.Identity(), **dict.fromkeys({*row.names, *row.resources}))


def test_only_eata_needs_images_of_the_source() -> None:
    assert [name for name, row in METHODS.items() if isinstance(row, MethodFactory) and row.needs_source] == ["eata"]
