import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.learning.optimize import update
from spear_hf.utils.distributed import ProcessGroup
from tests.builders import steered


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


def stepped(scaler: torch.amp.GradScaler | None, slope: float = 1.0) -> tuple[bool, Tensor]:
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    moved = update(slope * p.square().sum(), torch.optim.SGD([p], lr=0.1), ProcessGroup(), scaler)
    assert p.grad is None
    return moved, p.detach()


def test_a_scaler_changes_no_step() -> None:
    assert stepped(scaler())[0]
    torch.testing.assert_close(stepped(scaler()), stepped(None))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("slope", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_moves_nothing(scaled: bool, slope: float) -> None:
    with_scaler = scaler() if scaled else None
    moved, p = stepped(with_scaler, slope)
    assert not moved
    assert p.tolist() == [1.0, 2.0]
    if with_scaler is not None:
        assert with_scaler.get_scale() == 512.0


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_scaler_hears_of_no_batch_that_is_skipped(net: nn.Module, images: Tensor, tau: float) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = scaler()
    tta = Spear(steered(net, SpearConfig(tau=tau)), accelerator=accelerator)
    for _ in range(3):
        tta.step(images)
        assert tta.last is not None
        assert tta.last.adapted == (tau == 0.0)
    growth = accelerator.scaler.state_dict()["_growth_tracker"]
    assert growth == (3 if tau == 0.0 else 0)
