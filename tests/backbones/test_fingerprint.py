import torch
from torch import nn

from spear_hf.backbones.fingerprint import HEAD_PROBES, PROBES, fingerprint


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.timm_model = model


def test_a_fingerprint_ignores_timms_wrapper_prefix(net: nn.Module) -> None:
    assert fingerprint(Wrapper(net)) == fingerprint(net)


def test_a_fingerprint_does_not_depend_on_the_memory_format(net: nn.Module) -> None:
    before = fingerprint(net)
    assert fingerprint(net.to(memory_format=torch.channels_last)) == before  # pyright: ignore[reportCallIssue]
    assert len(before.probe) == PROBES + 2 * HEAD_PROBES


def test_a_model_without_real_weights_has_no_probe() -> None:
    with torch.device("meta"):
        assert fingerprint(nn.Linear(3, 2)).probe == ()
