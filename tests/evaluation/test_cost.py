import copy

import torch
from torch import Tensor, nn

from spear_hf.baselines import Source, Tent
from spear_hf.evaluation.cost import ELSEWHERE, Meter, SavedBytes, storages_of


def test_what_a_graph_keeps_is_counted_while_it_keeps_it() -> None:
    a, b = (torch.randn(100, requires_grad=True) for _ in range(2))
    with SavedBytes(frozenset()) as saved:
        y = (a * b).sum()  # keeps a and b
        assert saved.peak == 800
        y.backward()
        (a * a).sum().backward()  # one storage, held twice; what came before is gone
    assert saved.peak == 800


def test_a_graph_that_nothing_runs_backward_through_is_let_go() -> None:
    x = torch.randn(100, requires_grad=True)
    with SavedBytes(frozenset()) as saved:
        for _ in range(3):
            (x * 2).exp()  # keeps its own output
    assert saved.peak == 400


def test_weights_and_images_are_not_counted(net: nn.Module, images: Tensor) -> None:
    with SavedBytes(frozenset(p.untyped_storage().data_ptr() for p in net.parameters())) as some:
        net(images)
    with SavedBytes(frozenset()) as everything:
        net(images)
    assert 0 < some.peak < everything.peak


def test_a_method_that_learns_keeps_memory_and_the_source_none(net: nn.Module, images: Tensor) -> None:
    meter = Meter({"source": Source(copy.deepcopy(net)), "tent": Tent(net)}, memory=True)
    (_, *source), (_, *tent) = meter.step("source", images), meter.step("tent", images)
    assert source[1] == 0 < tent[1]
    assert meter.memory_kind == ELSEWHERE
    assert min(source[0], tent[0]) > 0


def test_what_a_method_holds_is_found_wherever_it_holds_it(net: nn.Module) -> None:
    class Inner:
        def __init__(self) -> None:
            self.model, self.start = net, [torch.zeros(3)]

    class Outer(Source):
        def __init__(self) -> None:
            self.where = {"norm": Inner()}

    held = storages_of(Outer())
    assert {p.untyped_storage().data_ptr() for p in (*net.parameters(), *net.buffers())} < held
    assert len(held) == len({t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}) + 1


def test_measuring_memory_changes_no_bit(net: nn.Module, images: Tensor) -> None:
    plain, measured = Tent(copy.deepcopy(net)), Tent(net)
    meter = Meter({"tent": measured}, memory=True)
    for _ in range(3):
        assert torch.equal(plain.step(images), meter.step("tent", images)[0])


def test_memory_is_measured_only_where_it_is_asked_for(net: nn.Module, images: Tensor) -> None:
    meter = Meter({"tent": Tent(net)}, memory=False)
    assert meter.step("tent", images)[2] == 0
    assert meter.memory_kind == ""
