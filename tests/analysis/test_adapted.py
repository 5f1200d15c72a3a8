import copy

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.analysis import ImageSet, accuracy, answer_online, learn, without_confident
from spear_hf.baselines import Source
from spear_hf.errors import DataError
from tests.builders import steered


def test_learn_makes_as_many_steps_as_asked_and_begins_again(net: nn.Module, images: Tensor) -> None:
    spear = Spear(steered(net))
    spear.step(images)
    learn(spear, images, 8, 5)
    assert spear.num_steps == 5
    state = spear.model.snapshot()
    spear.reset()
    for x in (images[:8], images[8:]) * 2 + (images[:8],):
        spear.step(x)
    assert all(torch.equal(state[key], value) for key, value in spear.model.snapshot().items())


def test_an_online_answer_counts_errors_and_skipped_batches(net: nn.Module, data: ImageSet) -> None:
    run = answer_online(Spear(steered(copy.deepcopy(net), SpearConfig(tau=1.0, alpha=0.0))), data, 8)
    assert run.skipped == 1
    assert (
        run.error
        == answer_online(Source(net), data, 16).error
        == 100 - accuracy(net(data.images).argmax(1), data.labels)
    )


def test_no_images_are_refused(net: nn.Module, data: ImageSet) -> None:
    with pytest.raises(DataError, match="noise has no images; at least one is needed"):
        answer_online(Source(net), without_confident(data, torch.zeros(16), 0.5), 8)
