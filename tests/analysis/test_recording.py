from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig, get_spear_model
from spear_hf.analysis import CLASSIFIER, find_classifier, outputs_of, pooled, recording
from spear_hf.boundaries import Boundary
from spear_hf.errors import DataError
from tests.builders import a_vit, hooks_of, steered


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1), ((2, 20, 3), -1), ((2, 3), 1)])
def test_pooling_leaves_one_vector_an_image(shape: tuple[int, ...], axis: int) -> None:
    z = torch.randn(*shape)
    expected = z.mean([d for d in range(1, z.dim()) if d != axis % z.dim()]) if z.dim() > 2 else z
    torch.testing.assert_close(pooled(z, axis), expected)


def test_a_recording_is_what_a_plain_hook_gives(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(boundaries="all"))
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
    model = steered(net, SpearConfig(boundaries="all"))
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
    for moved in (True, False):
        with torch.no_grad(), recording(model, steered=moved) as record:
            model(x)
        found[moved] = record.features()["0"]
    torch.testing.assert_close(found[True], 2 * found[False] + 0.5)


def test_a_recording_grows_by_the_rows_of_each_batch(net: nn.Module, images: Tensor) -> None:
    model = steered(net, SpearConfig(alpha=0.0))
    with torch.no_grad(), recording(model) as record:
        assert record.features() == {}
        for x in images.split(6):
            model(x)
        parts = record.features()
    with torch.no_grad(), recording(model) as record:
        model(images)
    torch.testing.assert_close(parts, record.features(), rtol=1e-4, atol=1e-5)


def test_the_classifier_is_found_and_its_input_makes_the_logits(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    assert find_classifier(model, images[:2]) == "fc"
    seen = outputs_of(model, images, 8, "fc")
    torch.testing.assert_close(net.get_submodule("fc")(seen.features[CLASSIFIER]), seen.logits)


def test_a_network_whose_logits_come_from_elsewhere_says_what_to_do(net: nn.Module, images: Tensor) -> None:
    net.fc = nn.Sequential(nn.Linear(24, 10), nn.ReLU())
    with pytest.raises(DataError, match=r"the output of none of its 1 linear layers; .*classifier='path.of.module'"):
        find_classifier(steered(net), images[:2])
