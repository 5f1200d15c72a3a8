"""Heads and outputs.

A classifier gives (B, K) logits, as a tensor or as `.logits` of what it returns.
"""

import timm

from spear_hf import get_spear_model
from spear_hf.errors import InputError
from tests.support.table import refused


@refused(
    'a head of several labels, `problem_type="multi_label_classification"`',
    InputError,
    "allowed is a classifier with one label for each image",
)
def test_several_labels_for_an_image() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    config.problem_type = "multi_label_classification"
    get_spear_model(ViTForImageClassification(config))


@refused(
    "features without a head, `num_classes=0`", InputError, "has no head, so its outputs are features and no logits"
)
def test_features_without_a_head() -> None:
    get_spear_model(timm.create_model("test_vit", num_classes=0))
