"""Published constants, and those between the published levels."""

import numpy as np
import pytest

from spear_hf.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    PRESETS,
    corrupt,
    sample_rng,
)
from spear_hf.data.corruptions.constants import STRENGTHS, at_severity, resolve_preset
from spear_hf.errors import DataError
from tests.data.corruptions.scenes import scene

ROWS = CORRUPTIONS | EXTRA_CORRUPTIONS


def rngs(name: str, count: int, preset: str = "cifar", severity: float = 5) -> list[np.random.Generator]:
    return [sample_rng(0, preset, name, severity, index) for index in range(count)]


@pytest.mark.parametrize("name", ROWS)
def test_whole_severities_have_the_published_constants(name: str) -> None:
    for preset in PRESETS:
        assert [at_severity(name, severity, preset) for severity in range(1, 6)] == list(
            getattr(STRENGTHS[name], preset)
        )


def test_constants_are_linear_between_levels_and_reach_down_to_level_zero() -> None:
    assert at_severity("gaussian_noise", 0.5, "imagenet") == pytest.approx((0.04,))
    assert at_severity("glass_blur", 2.5, "imagenet") == pytest.approx((0.95, 2, 2))
    assert at_severity("elastic_transform", 0.5, "imagenet") == pytest.approx((244, (999 + 170.8) / 2, 12.2))
    assert at_severity("shot_noise", 0.5, "imagenet") == pytest.approx((1 / 120,))


def test_water_and_mud_have_nothing_between_them() -> None:
    assert at_severity("spatter", 3.4, "cifar") == at_severity("spatter", 3, "cifar")
    assert at_severity("spatter", 3.6, "cifar") == at_severity("spatter", 4, "cifar")


@pytest.mark.parametrize("severity", [0, 6, -1, 5.01, float("nan")])
def test_severities_outside_0_to_5_are_refused(severity: float) -> None:
    with pytest.raises(DataError, match=r"outside \(0, 5\]; 1..5 are the published levels"):
        corrupt(scene(32, 0), "fog", severity, rngs("fog", 1)[0])


def test_any_size_takes_the_constants_of_the_nearest() -> None:
    image = scene(32, 0)[:28, :28]
    auto, named = (corrupt(image, "contrast", 5, rngs("contrast", 1)[0], preset) for preset in ("auto", "cifar"))
    assert (auto == named).all()
    assert [resolve_preset("auto", 100, side).name for side in (20, 90, 130)] == ["cifar", "tiny", "tiny"]
    with pytest.raises(DataError, match="'imagenette' is not one of imagenet, cifar, tiny"):
        corrupt(scene(32, 0), "fog", 5, rngs("fog", 1)[0], "imagenette")


def test_only_imagenet_images_were_stored_as_jpeg() -> None:
    assert {name: preset.jpeg_quality for name, preset in PRESETS.items()} == {
        "imagenet": 85,
        "cifar": None,
        "tiny": None,
    }
