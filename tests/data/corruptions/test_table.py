"""Names, groups and their order."""

import numpy as np
import pytest

from spear_hf.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    corrupt,
    resolve_corruptions,
    sample_rng,
)
from spear_hf.errors import DataError
from tests.data.corruptions.scenes import scene


def rngs(name: str, count: int, preset: str = "cifar", severity: float = 5) -> list[np.random.Generator]:
    return [sample_rng(0, preset, name, severity, index) for index in range(count)]


def test_the_table_has_the_15_in_the_order_of_the_papers() -> None:
    first_words = [name.split("_")[0] for name in CORRUPTIONS]
    assert first_words[:7] == ["gaussian", "shot", "impulse", "defocus", "glass", "motion", "zoom"]
    assert first_words[7:] == ["snow", "frost", "fog", "brightness", "contrast", "elastic", "pixelate", "jpeg"]
    assert list(EXTRA_CORRUPTIONS) == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]


def test_an_unknown_name_gets_near_matches() -> None:
    with pytest.raises(DataError, match=r"'gausian_noise' is not one of the 19 known; did you mean gaussian_noise"):
        corrupt(scene(32, 0), "gausian_noise", 5, rngs("fog", 1)[0])


def test_groups_and_names_resolve_to_names() -> None:
    assert resolve_corruptions("all") == list(CORRUPTIONS)
    assert resolve_corruptions("extra") == list(EXTRA_CORRUPTIONS)
    assert resolve_corruptions("noise, fog") == ["gaussian_noise", "shot_noise", "impulse_noise", "fog"]
    assert resolve_corruptions(["fog", "frost", "fog"]) == ["fog", "frost", "fog"]
    groups = [name for group in ("noise", "blur", "weather", "digital") for name in resolve_corruptions(group)]
    assert groups == list(CORRUPTIONS)


@pytest.mark.parametrize(("names", "message"), [("", "names none"), ("fgo", "did you mean fog"), ([], "names none")])
def test_names_that_resolve_to_nothing_are_refused(names: str | list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve_corruptions(names)
