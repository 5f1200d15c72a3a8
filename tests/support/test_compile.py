"""torch.compile.

Compile the steered model, not its base. What differs between calls is in tensors, so that one graph serves any adapter,
any number of images and any number of streams; torch itself makes another for a batch of one image, for calls without
gradients and, on a CPU, for convolutions of 16 images or more. Ratios are in
[benchmarks/results/compiled.md](../benchmarks/results/compiled.md).
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, SpearModel, get_spear_model
from spear_hf.errors import CompiledBaseError
from tests.builders import TwoStages, steered
from tests.support.table import refused, works

OPEN = SpearConfig(tau=0.0)


@pytest.fixture
def net() -> nn.Module:
    """With running statistics of its own."""
    torch.manual_seed(0)
    net = TwoStages()
    net.train()(torch.randn(16, 3, 16, 16) + 1)
    return net.eval()


class Graphs:
    """A backend that counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        self.count += 1
        return graph.forward

    def of(self, model: SpearModel, **options: object) -> nn.Module:
        torch._dynamo.reset()
        return torch.compile(model, **{"fullgraph": True, "dynamic": True, "backend": self} | options)  # pyright: ignore


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16)


def moved(model: SpearModel, names: list[str]) -> SpearModel:
    """With these adapters, none of them the identity."""
    for name in names:
        if name not in model.peft_config:
            model.add_adapter(name, SpearConfig(alpha=0.5))
        with torch.no_grad():
            for parameter in model.adapter_parameters(name):
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def equal(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@works("`torch.compile(model, fullgraph=True, dynamic=True)`", "one graph for twelve adapters and three batch sizes")
def test_twelve_adapters_and_a_dynamic_batch_take_one_graph(net: nn.Module) -> None:
    names, graphs = [f"a{i}" for i in range(12)], Graphs()
    model = moved(steered(net, SpearConfig(alpha=0.5), adapter_name="a0"), names)
    compiled = graphs.of(model)
    for i, name in enumerate(names):
        model.set_adapter(name)
        with torch.no_grad():
            equal(compiled(x := images(4 + i % 3)), model(x))
    assert graphs.count == 1


@pytest.mark.slow
@works("`Spear(model, compile=True)`: forward and backward of a step", "what an uncompiled step learns, up to rounding")
def test_a_compiled_step(net: nn.Module) -> None:
    config = SpearConfig.paper(tau=0.0)
    plain, compiled = Spear(steered(copy.deepcopy(net), config)), Spear(steered(net, config), compile=True)
    for count in (4, 4, 5):
        equal(compiled.step(x := images(count)), plain.step(x))
    assert compiled.last.adapted  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    for a, b in zip(compiled.parameters(), plain.parameters(), strict=True):
        equal(a, b)


@pytest.mark.slow
@works("a compiled learner with memories, at any batch size", "no new graph after the first step")
def test_a_compiled_learner_makes_no_further_graph(net: nn.Module) -> None:
    graphs, plain = Graphs(), Spear(steered(copy.deepcopy(net), OPEN))
    tta = Spear(graphs.of(steered(net, OPEN)))
    counts = []
    for count in (4, 5, 7, 9, 3, 4):
        equal(tta.step(x := images(count)), plain.step(x))
        counts.append(graphs.count)
    assert len(set(counts)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # torch looks there
@works("a compiled learner of many streams, `step(x, streams=names)`", "no new graph for more streams")
def test_a_compiled_learner_of_many_streams(net: nn.Module) -> None:
    graphs, plain = Graphs(), Spear(steered(copy.deepcopy(net), OPEN))
    tta, counts = Spear(graphs.of(steered(net, OPEN))), []
    for names in ("aabb", "abcde", "abcdefaa", "bbc"):
        equal(tta.step(x := images(len(names)), streams=list(names)), plain.step(x, streams=list(names)))
        counts.append(graphs.count)
    assert counts[-1] == counts[1]


@pytest.mark.slow
@works("`adapter_names=` in a compiled call", "without `fullgraph=True`; a graph for each list of names")
def test_adapter_names_in_a_compiled_call(net: nn.Module) -> None:
    model = moved(steered(net, SpearConfig(alpha=0.5)), ["default", "fog"])
    compiled, names, x = Graphs().of(model, fullgraph=False), ["fog", "default", "fog"], images(3)
    with torch.no_grad():
        equal(compiled(x, adapter_names=names), model(x, adapter_names=names))


@pytest.mark.slow
@works("a base that somebody has put in training mode", "compiled calls put it back, and write no buffer")
def test_a_compiled_call_of_a_base_in_training_mode(net: nn.Module) -> None:
    model, before = steered(net, SpearConfig(alpha=0.5)), copy.deepcopy(net.state_dict())
    compiled, x = Graphs().of(model), images(4)
    expected = model(x)
    net.train()
    equal(compiled(x), expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@refused("a base that is compiled before it is steered", CompiledBaseError, "torch.compile the SpearModel")
def test_a_compiled_base(net: nn.Module) -> None:
    get_spear_model(torch.compile(net, backend="eager"))  # pyright: ignore[reportArgumentType]
