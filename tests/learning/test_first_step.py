"""Learning that cannot happen is refused, and nothing is changed by the refusal."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.errors import InputError
from tests.builders import TwoStages, learner


class Probabilities(TwoStages):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Cut(TwoStages):
    """Its features are cut from the graph once it is steered; cut earlier, it has no boundaries."""

    is_cut = False

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers(self.stem(x)).mean((2, 3))
        return self.fc(features.detach() if self.is_cut else features)


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(TwoStages().eval(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("streams", [None, "cam-1", ["a", "b", "a", "b"]])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Probabilities, r"outputs are probabilities, each row sums to 1.*torch\.log"),
        (Cut, r"no gradient reaches the RSPs at boundaries \['0', '1'\].*no_grad, detach"),
        (quantised, "its layer fc is quantised by torch.ao for inference alone; learn on the float"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*deprecated")  # torch will drop quantize_dynamic some day
def test_what_cannot_be_learned_from_is_refused(
    make: Callable[[], nn.Module], message: str, streams: list[str] | str | None
) -> None:
    torch.manual_seed(0)
    tta = Spear(get_spear_model(make().eval(), SpearConfig(tau=0.0)))
    tta.model.base_model.is_cut = True  # pyright: ignore[reportAttributeAccessIssue]
    before = tta.model.snapshot()
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            tta.step(torch.randn(4, 3, 16, 16), streams=streams)
    assert tta.last is None
    assert not tta.streams
    assert all(torch.equal(value, before[key]) for key, value in tta.model.snapshot().items())


def test_a_network_of_several_streams_is_not_refused() -> None:
    torch.manual_seed(0)
    tta = learner(TwoStages().eval())
    tta.step(torch.randn(4, 3, 16, 16), streams=["a", "b", "a", "b"])
    assert tta.streams["a"].deviations()[0] > 0


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_scripted_batch_norm_is_named_where_its_statistics_would_be_mixed() -> None:
    net = TwoStages().eval()
    net.layers[1].bn = torch.jit.script(net.layers[1].bn)
    with pytest.warns(UserWarning, match=r"1 BatchNorm layers \(layers\.1\.bn, \.\.\.\) are scripted, so alpha=0\.5"):
        get_spear_model(net)
