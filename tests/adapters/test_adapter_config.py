"""Configurations in an adapter's file."""

import pytest

from spear_hf.adapters.adapter_config import read_spear_config
from spear_hf.errors import ConfigError


def test_settings_from_before_fields_were_renamed_are_read() -> None:
    old = {"statistics_memory": 8, "diversity_memory": 0, "diversity_batch": 16, "answer_views": 2, "learn_every": 3}
    found = read_spear_config(old)
    assert (found.memory_images, found.tta_views, found.adapt_every, found.likelihood_ratio) == (8, 2, 3, 0.0)
    with pytest.raises(ConfigError, match="no field 'tua'"):
        read_spear_config(old | {"tua": 1})
