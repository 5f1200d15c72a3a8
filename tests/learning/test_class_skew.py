import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.learning.class_skew import ClassSkew
from spear_hf.learning.record import FEW_CLASSES, StepRecord
from spear_hf.utils.distributed import BatchShard
from tests.builders import check_resume, steered


def answers(classes: Tensor, sure: float = 0.8) -> Tensor:
    """(n, 10) probabilities, `sure` of these classes."""
    return torch.full((len(classes), 10), (1 - sure) / 9).scatter(1, classes[:, None], sure)


def skew_of(classes: Tensor, size: int = 16) -> ClassSkew:
    skew = ClassSkew(64)
    for part in answers(classes).split(size):
        skew.add(part)
    return skew


SHUFFLED = torch.randint(10, (320,), generator=torch.Generator().manual_seed(0))


def test_a_shuffled_stream_is_of_many_classes_and_one_class_of_few() -> None:
    many, one = skew_of(SHUFFLED), skew_of(torch.full((320,), 3))
    assert abs(many.alike) < 0.05
    assert one.alike == pytest.approx(1.0)
    assert (many.decide(), one.decide()) == (False, True)


@pytest.mark.parametrize("size", [1, 4, 64])
def test_classes_that_come_in_turn_are_noticed_at_any_batch_size(size: int) -> None:
    assert skew_of(SHUFFLED.sort().values, size).in_turn > 0.3
    assert skew_of(SHUFFLED, size).in_turn < 0.05


def test_a_shuffled_stream_of_mostly_one_of_two_classes_reads_as_one_of_few() -> None:
    skew = ClassSkew(64)
    skew.add(torch.eye(2)[(SHUFFLED == 0).long()])  # 90 % of one class
    assert skew.decide()
    assert skew.in_turn < 0.05


def test_unsure_answers_do_not_look_alike() -> None:
    skew = ClassSkew(64)
    skew.add(answers(SHUFFLED, sure=0.2))
    assert abs(skew.alike) < 0.05


def test_its_bytes_are_those_of_what_it_keeps() -> None:
    assert skew_of(SHUFFLED).nbytes == 32 * 10 * 4 + 10 * 4 + 2 * 4 * 8


def test_nothing_is_decided_on_a_few_images() -> None:
    skew = skew_of(SHUFFLED[:31])
    assert skew.decide()
    assert skew.is_of_few is None
    skew.add(answers(SHUFFLED[:1]))
    assert not skew.decide()


@pytest.mark.parametrize("before", [3, None])
def test_between_the_bounds_it_stays_as_it_was(before: int | None) -> None:
    skew = skew_of(SHUFFLED if before is None else torch.full((320,), before))
    was = skew.decide()
    for part in answers(torch.where(torch.arange(320) % 2 == 0, 3, SHUFFLED)).split(16):
        skew.add(part)
    assert 0.2 < skew.alike < 0.35
    assert skew.decide() == was


def test_answers_that_are_not_finite_are_passed_by() -> None:
    skew = skew_of(SHUFFLED)
    before = repr(skew.state_dict())
    skew.add(torch.full((4, 10), torch.nan))
    assert repr(skew.state_dict()) == before


def test_a_state_goes_on_to_the_same_bits() -> None:
    whole, fresh = skew_of(SHUFFLED), ClassSkew(64)
    fresh.load_state_dict(skew_of(SHUFFLED[:160]).state_dict())
    for part in answers(SHUFFLED[160:]).split(16):
        fresh.add(part)
    assert repr(fresh.state_dict()) == repr(whole.state_dict())


def test_rows_of_all_processes_come_in_the_order_of_the_batch() -> None:
    rows, sizes = torch.arange(10.0).view(5, 2), (3, 2)
    slices = [BatchShard(sizes, rank, lambda part: part) for rank in range(2)]
    parts = [shard.gathered(rows[shard.offset : shard.offset + shard.local]) for shard in slices]
    assert torch.equal(parts[0] + parts[1], rows)


def learner(net: nn.Module, *, one_class: bool) -> Spear:
    """On a net whose answers are sure: of one class, or of what it sees."""
    with torch.no_grad():
        net.get_submodule("fc").weight.mul_(0.0 if one_class else 30.0)  # pyright: ignore
        net.get_submodule("fc").bias[3] += 20.0 if one_class else 0.0  # pyright: ignore
    return Spear(steered(net, SpearConfig(learning_rate=0.1)))


def test_on_few_classes_nothing_is_learned_and_deep_layers_keep_the_sources_statistics(
    net: nn.Module, images: Tensor
) -> None:
    tta = learner(net, one_class=True)
    start = tta.model.snapshot()
    tta.step(images)
    assert isinstance(tta.last, StepRecord)
    assert tta.last.adapted, "of so few images it is not known"
    tta.step(images)
    assert isinstance(tta.last, StepRecord)
    assert (tta.last.adapted, tta.last.skipped) == (False, FEW_CLASSES)
    torch.testing.assert_close(tta.model.snapshot(), start, rtol=0, atol=0)
    assert tta.stream.early_only
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert tta._forward.norms.early == set(norms[: (len(norms) + 1) // 2])


def test_a_stream_of_few_classes_is_asked_again_with_all_of_alpha_in_early_layers(
    net: nn.Module, images: Tensor
) -> None:
    """A network that a shift makes sure of one class would keep its stream there by its own answers."""
    tta = learner(net, one_class=True)
    for _ in range(8):
        tta.step(images)  # the shares of alpha are known
    forwards = []
    handle = net.register_forward_hook(lambda *_: forwards.append(1))
    tta.step(images)
    assert (tta.stream.shows_few_classes, len(forwards)) == (True, 2)
    handle.remove()


def test_reset_and_resume_give_the_same_bits(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, one_class=False)
    check_resume(tta, images.split(4), split=2)
    tta.reset()
    assert tta.stream.early_only


def test_the_papers_method_never_looks(net: nn.Module, images: Tensor) -> None:
    tta = Spear(steered(net, SpearConfig.paper()))
    tta.step(images)
    assert tta.stream.skew is None
    assert not tta.stream.early_only
