from typing import Any

import pytest
import torch
from torch import Tensor

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.learning.objective import ImageGroups, normalized_entropy
from spear_hf.learning.temperature import learning_temperature
from tests.builders import TwoStages, images_and_labels, steered
from tests.two_towers import LABELS, images_for, tiny_clip, word_tokenizer

LOGITS = 3 * torch.randn(8, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_entropy_is_the_one_asked_for_at_any_scale(scale: float) -> None:
    found = learning_temperature(scale * LOGITS, 0.2)
    assert normalized_entropy(scale * LOGITS / found).mean() == pytest.approx(0.2, abs=0.005)


def test_each_stream_has_a_temperature_of_its_own() -> None:
    index = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    logits = LOGITS * (1 + 9 * index)[:, None]
    together = learning_temperature(logits, 0.2, groups=ImageGroups(index, (4, 4)))
    for stream in (0, 1):
        torch.testing.assert_close(together[stream], learning_temperature(logits[index == stream], 0.2))


@pytest.mark.parametrize("logits", [torch.zeros(2, 3), torch.full((2, 3), torch.nan), torch.eye(3) * 1e20])
def test_where_no_temperature_gives_it_there_is_one_all_the_same(logits: Tensor) -> None:
    assert learning_temperature(logits, 0.2).isfinite()


def learned(scale: float, **config: Any) -> list[Tensor]:
    """RSP values after three batches, of a network whose logits are multiplied."""
    torch.manual_seed(0)
    net = TwoStages().eval()
    for parameter in net.fc.parameters():
        parameter.data.mul_(scale)
    tta = Spear(steered(net, SpearConfig(**config)))
    for seed in range(3):
        tta.step(images_and_labels(seed, 8)[0])
    return [value.detach() for value in tta.parameters()]


def test_what_is_learned_does_not_depend_on_the_scale() -> None:
    one, hundred = learned(1.0, learning_entropy=0.2), learned(100.0, learning_entropy=0.2)
    for a, b in zip(one, hundred, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.005)


def test_answers_keep_the_scale_of_the_model() -> None:
    net = TwoStages().eval()
    x = images_and_labels(0, 4)[0]
    expected = net(x).detach()
    torch.testing.assert_close(Spear(steered(net, SpearConfig(alpha=0.0, learning_entropy=0.2))).step(x), expected)


def test_the_record_has_the_entropy_of_the_answers() -> None:
    base = tiny_clip()
    tta = Spear(get_spear_model(base, labels=LABELS, processor=word_tokenizer()))
    for _ in range(3):
        tta.step(**images_for(None, 8))
    moved = torch.cat([value.detach() for value in tta.parameters()])
    assert moved.std() > 0.01
    assert tta.last.entropy == pytest.approx(
        float(normalized_entropy(tta.predict(images_for(None, 8))).mean()), abs=0.1
    )


def test_many_streams_learn_as_each_alone() -> None:
    config = SpearConfig(learning_entropy=0.2, alpha=0.0)
    x = images_and_labels(0, 8)[0]
    together, alone = (Spear(steered(TwoStages().eval(), config)) for _ in range(2))
    alone.model.base_model.load_state_dict(together.model.base_model.state_dict())
    together.step(x, streams=["a", "b"] * 4)
    alone.step(x[::2], streams="a")
    torch.testing.assert_close(together.streams["a"].flat, alone.streams["a"].flat)
