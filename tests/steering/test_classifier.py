import pytest
import timm
from torch import nn
from torchvision.models import resnet18
from transformers import ResNetConfig, ResNetForImageClassification

from spear_hf import get_spear_model
from spear_hf.errors import InputError


def hf_resnet(**options: object) -> nn.Module:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1] * 4, **options)
    return ResNetForImageClassification(config)


def beheaded() -> nn.Module:
    model = resnet18()
    model.fc = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return model


CASES = {
    "timm without a head": (lambda: timm.create_model("test_resnet", num_classes=0), "has no head"),
    "torchvision without a head": (beheaded, "has no head"),
    "one logit": (lambda: hf_resnet(num_labels=1), "one logit"),
    "several labels": (lambda: hf_resnet(problem_type="multi_label_classification"), "one label for each image"),
    "probabilities": (
        lambda: nn.Sequential(timm.create_model("test_resnet"), nn.Softmax(1)),
        "ends in Softmax, so its outputs are probabilities",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_classifier_is_refused_when_it_is_steered(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(InputError, match=message):
        get_spear_model(make())


def test_a_head_behind_a_feature_extractor_is_a_classifier() -> None:
    features = timm.create_model("test_resnet", num_classes=0)
    get_spear_model(nn.Sequential(features, nn.Linear(features.num_features, 3)))
