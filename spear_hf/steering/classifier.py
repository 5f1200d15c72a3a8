"""What is no classifier is refused when it is steered, before anything learns from its outputs."""

from typing import Any

from torch import nn

from spear_hf.backbones.zero_shot import ZeroShotClassifier, has_two_towers
from spear_hf.errors import InputError

HEADS = ("fc", "classifier", "head", "heads")
"""Where the libraries keep the head of a classifier; an Identity there is a head that was taken off."""


def refuse_no_classifier(base: nn.Module) -> None:
    """Raise InputError for a model whose outputs are no logits of two classes or more, as far as that shows.

    >>> import timm
    >>> from spear_hf.steering.classifier import refuse_no_classifier
    >>> refuse_no_classifier(timm.create_model("test_resnet"))

    Raises:
        InputError: a feature extractor, a regression or multi-label head, or an output of probabilities.
    """
    kind, config = type(base).__name__, getattr(base, "config", None)
    if has_two_towers(base) and not isinstance(base, ZeroShotClassifier):
        raise InputError(
            f"{kind} gives scores to pairs of images and texts, and is no classifier without labels; name the classes: "
            'get_spear_model(model, labels=["cat", "dog"], processor=processor)'
        )
    problem = getattr(config, "problem_type", None)
    if problem in ("regression", "multi_label_classification"):
        raise InputError(f"{kind} has problem_type={problem!r}; allowed is a classifier with one label for each image")
    if _number(base, "num_classes") == 0 or _number(config, "num_labels") == 0 or _has_no_head(base):
        raise InputError(
            f"{kind} has no head, so its outputs are features and no logits; load the model with its classifier "
            "(num_classes=...), or put a trained one behind it: nn.Sequential(model, head)"
        )
    if 1 in (_number(base, "num_classes"), _number(config, "num_labels")):
        raise InputError(
            f"{kind} has one logit, which is no choice between classes; give it two: torch.stack([-z / 2, z / 2], 1)"
        )
    last = list(base.modules())[-1]
    if isinstance(last, (nn.Softmax, nn.Sigmoid)) and isinstance(base, nn.Sequential):
        raise InputError(
            f"{kind} ends in {type(last).__name__}, so its outputs are probabilities; steer it without that layer"
        )


def _number(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _has_no_head(base: nn.Module) -> bool:
    found = [head for name in HEADS if isinstance(head := getattr(base, name, None), nn.Module)]
    return bool(found) and all(isinstance(head, nn.Identity) for head in found)
