"""Heads and outputs.

A classifier gives (B, K) logits, as a tensor or as `.logits` of what it returns.
"""

import timm

from spear_hf import get_spear_model
from spear_hf.errors import InputError
from tests.support.table import refused


@refused(
    "features without a head, `num_classes=0`", InputError, "has no head, so its outputs are features and no logits"
)
def test_features_without_a_head() -> None:
    get_spear_model(timm.create_model("test_vit", num_classes=0))
