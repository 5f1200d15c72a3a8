import copy

import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.baselines import BnAdapt, Source
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.preservation import baselines, clean_along
from tests.builders import TinyStream, steered

CONFIG = SpearConfig(alpha=0.0, boundaries=(0, 2))


def test_clean_images_are_answered_with_what_each_domain_taught(net: nn.Module) -> None:
    pristine, model = copy.deepcopy(net), steered(net, CONFIG)
    identity = model.snapshot()
    dull = {key: torch.zeros_like(value) for key, value in identity.items()}
    report = clean_along(model, {"fog/5": identity, "snow/5": dull}, pristine, TinyStream())
    source = evaluate({"source": Source(pristine)}, TinyStream(), progress=False).mean_error("source")
    assert [row.domain for row in report.rows] == ["fog/5", "snow/5"]
    assert report.rows[0].error == {"source": source, "SPeaR": source}
    assert report.rows[1].error["SPeaR"] != source
    torch.testing.assert_close(model.snapshot(), identity, rtol=0, atol=0)


def test_what_a_learner_remembers_of_a_stream_does_not_reach_the_model(net: nn.Module, images: Tensor) -> None:
    pristine, config = copy.deepcopy(net), SpearConfig(alpha=0.9, memory_images=64, learning_rate=0.0)
    fresh = steered(copy.deepcopy(net), config)
    tta = Spear(steered(net, config))
    tta.step(5 * images + 3)
    learned = {"fog/5": fresh.snapshot()}
    expected = clean_along(fresh, learned, pristine, TinyStream())
    answer = tta.model(images)
    assert torch.equal(answer, fresh(images))
    assert clean_along(tta.model, learned, pristine, TinyStream()).rows == expected.rows
    assert torch.equal(tta.model(images), answer)


def test_the_baselines_have_a_base_of_their_own_and_mix_only_what_the_model_mixes(net: nn.Module) -> None:
    pristine = copy.deepcopy(net)
    model = steered(net, CONFIG)
    assert list(baselines(model, pristine)) == ["source"]
    model.add_adapter("mixing", SpearConfig(alpha=0.35, boundaries=(0, 2)))
    model.set_adapter("mixing")
    found = baselines(model, pristine)
    assert list(found) == ["source", "alpha only"]
    mixed = found["alpha only"]
    assert isinstance(mixed, BnAdapt)
    assert mixed.alpha == 0.35
    assert mixed.unload() is not pristine
