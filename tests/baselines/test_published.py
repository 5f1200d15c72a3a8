"""Published hyper-parameters are accepted by their methods."""

from typing import Any

import pytest
from torch import Tensor

from spear_hf.baselines import METHODS, published
from spear_hf.baselines.published import for_num_classes
from spear_hf.errors import ConfigError
from tests.builders import LEARNERS, NORMALIZED, TwoStages


@pytest.mark.parametrize("benchmark", ["cifar10", "cifar100", "imagenet", "imagenet_vit"])
def test_what_was_published_can_be_passed_on(benchmark: str, images: Tensor) -> None:
    net = TwoStages()
    extra: dict[str, Any] = dict.fromkeys(("roid", "cmf", "cotta", "rotta"), NORMALIZED)
    extra["eata"] = {"source_images": images[:2]}
    for name in LEARNERS:
        if name != "spear":
            METHODS[name](net, **published(name, benchmark), **extra.get(name, {})).unload()


@pytest.mark.parametrize("name", ["source", "spear"])
def test_a_method_without_published_values_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"nothing published is known of '{name}'"):
        published(name, "cifar10")


@pytest.mark.parametrize(("classes", "margin"), [(2, 0.4), (10, 0.4), (31, 0.4), (32, 0.1), (100, 0.1), (1000, 0.05)])
def test_a_value_is_that_of_the_nearest_benchmark(classes: int, margin: float) -> None:
    assert for_num_classes(classes, {10: 0.4, 100: 0.1, 1000: 0.05}) == margin
