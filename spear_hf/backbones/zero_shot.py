"""ZeroShotClassifier: a model of images and texts (CLIP, SigLIP) as a classifier of labels that are given in words."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.backbones.head import MOST_LABELS, Head, is_line
from spear_hf.errors import ConfigError
from spear_hf.utils.signatures import bound_with_signature, parameters_of, with_keywords
from spear_hf.utils.validation import first_line

TEMPLATES = ("a photo of a {}.",)
"""The prompt of CLIP's paper for a label."""

PROMPTS = 256  # that are encoded at a time


def has_two_towers(model: nn.Module) -> bool:
    """Whether a model gives scores to pairs of an image and a text, as CLIP and SigLIP do.

    >>> has_two_towers(nn.Linear(3, 2))
    False
    """
    return all(callable(getattr(model, f"get_{kind}_features", None)) for kind in ("image", "text"))


class ZeroShotClassifier(nn.Module):
    """A classifier of `labels`: an image's logits are those that the model gives to it and each label's prompt.

    The texts are encoded here, once, and frozen; a label with several prompts has the mean of their directions. Logits
    have the model's own scale (and bias). What this module lacks is looked up on the model.

    Args:
        model: CLIPModel, SiglipModel, Siglip2Model, or another one with get_image_features, get_text_features and a
            logit scale. It is not changed.
        labels: K names of classes, two or more.
        processor: the model's processor or its tokenizer; None loads the tokenizer from where the model came from.
        templates: prompts with "{}", where the label stands.

    Attributes:
        two_tower: the model.
        head: labels and templates.
        text_embeds: (K, D), each of length 1.
        config: the model's configuration, with the labels as its classes.

    Raises:
        ConfigError: no such model, labels or templates that are not allowed, no tokenizer, or a prompt that is too
            long for the model.

    >>> from transformers import CLIPConfig, CLIPModel
    >>> small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> vision = small | {"image_size": 8, "patch_size": 4}
    >>> clip = CLIPModel(CLIPConfig(text_config=small | {"vocab_size": 9, "eos_token_id": 8}, vision_config=vision))
    >>> def tokenizer(prompts, **options): return {"input_ids": torch.tensor([[len(p) % 8, 8] for p in prompts])}
    >>> model = ZeroShotClassifier(clip, ["cat", "tiger"], tokenizer)
    >>> model(torch.zeros(1, 3, 8, 8)).logits.shape, model.config.id2label
    (torch.Size([1, 2]), {0: 'cat', 1: 'tiger'})
    """

    two_tower: Any
    text_embeds: Tensor
    main_input_name = "pixel_values"

    def __init__(
        self,
        model: nn.Module,
        labels: Sequence[str],
        processor: Any = None,
        templates: Sequence[str] | str | None = None,
    ) -> None:
        super().__init__()
        if not has_two_towers(model) or not (hasattr(model, "logit_scale") or hasattr(model, "temperature")):
            raise ConfigError(
                f"labels= was given, and {type(model).__name__} has no text tower; allowed is a model of images and "
                "texts, such as CLIPModel or SiglipModel; leave labels out for a classifier"
            )
        self.head = Head(check_labels(labels), check_templates(templates))
        self.two_tower = model
        tokenizer = _tokenizer(model) if processor is None else getattr(processor, "tokenizer", processor)
        self.register_buffer("text_embeds", _text_embeds(model, tokenizer, self.head), persistent=False)
        self.config = _with_labels(getattr(model, "config", None), self.head.labels)
        self.training = model.training
        self._show_arguments()

    def forward(self, pixel_values: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        """Logits (B, K), and with `labels` (B,) the cross-entropy.

        Args:
            pixel_values: (B, C, H, W), or the model's patches.
            args, kwargs: further arguments of the model's get_image_features, such as pixel_attention_mask.
            labels: (B,) int64 in 0..K-1.
        """
        from transformers.modeling_outputs import ImageClassifierOutput

        found = self.two_tower.get_image_features(pixel_values, *args, **kwargs)
        embeds = F.normalize(pooled(found), dim=-1)
        logits = self.scaled(embeds @ self.text_embeds.to(embeds.dtype).T)
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]

    def scaled(self, cosines: Tensor) -> Tensor:
        """Logits of cosines, at the model's scale."""
        scale, bias = getattr(self.two_tower, "logit_scale", None), getattr(self.two_tower, "logit_bias", None)
        logits = cosines / self.two_tower.temperature if scale is None else cosines * scale.exp()
        return logits if bias is None else logits + bias

    def _show_arguments(self) -> None:
        shown = parameters_of(self.two_tower.get_image_features) or []
        plain = cast(FunctionType, type(self).forward)
        self.forward = bound_with_signature(self, plain, with_keywords(shown, "labels"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._show_arguments()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "two_tower" or name.startswith("__"):
                raise
            return getattr(self.two_tower, name)


def as_classifier(
    model: nn.Module,
    labels: Sequence[str] | None = None,
    processor: Any = None,
    templates: Sequence[str] | str | None = None,
) -> nn.Module:
    """The model, inside a ZeroShotClassifier where labels are given.

    >>> net = nn.Linear(3, 2)
    >>> as_classifier(net) is net
    True

    Raises:
        ConfigError: a model of images and texts without labels, or a classifier with them.
    """
    given = next((name for name, v in (("processor", processor), ("templates", templates)) if v is not None), None)
    if labels is None and given is not None:
        raise ConfigError(f"{given}= was given without labels=; give the classes too, or neither")
    if isinstance(model, ZeroShotClassifier):
        if labels is not None:
            raise ConfigError(
                f"labels= was given, and this model has labels already: {list(model.head.labels[:3])}, ..."
            )
        return model
    return model if labels is None else ZeroShotClassifier(model, labels, processor, templates)


def model_inside(base: nn.Module) -> nn.Module:
    """The model of images and texts inside a ZeroShotClassifier; any other model is itself.

    >>> net = nn.Linear(3, 2)
    >>> model_inside(net) is net
    True
    """
    return base.two_tower if isinstance(base, ZeroShotClassifier) else base


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels as a tuple.

    >>> check_labels(["cat", "dog"])
    ('cat', 'dog')

    Raises:
        ConfigError: fewer than two, one that is no text, or one that comes twice; a set or a mapping, whose order is
            not that of the classes.
    """
    if isinstance(labels, (Set, Mapping)):
        raise ConfigError(
            f"labels= is a {type(labels).__name__}, whose order need not be that of the classes; give a list, such as "
            '["cat", "dog"]'
        )
    found = () if isinstance(labels, str) else tuple(labels)
    if not 2 <= len(found) <= MOST_LABELS or not all(is_line(label) and label.strip() for label in found):
        raise ConfigError(f'labels={labels!r} is not allowed; give two names or more, such as ["cat", "dog"]')
    if twice := [label for label, times in Counter(found).items() if times > 1]:
        raise ConfigError(f"labels hold {twice[0]!r} twice; give each class a name of its own")
    return found


def check_templates(templates: Sequence[str] | str | None) -> tuple[str, ...]:
    """The templates as a tuple; CLIP's prompt for None.

    >>> check_templates("a sketch of a {}.")
    ('a sketch of a {}.',)

    Raises:
        ConfigError: none, or one without "{}".
    """
    found = TEMPLATES if templates is None else (templates,) if isinstance(templates, str) else tuple(templates)
    if not found or not all(is_line(template) and template.count("{}") == 1 for template in found):
        raise ConfigError(
            f'templates={templates!r} is not allowed; give prompts with one "{{}}", where the label stands'
        )
    return found


def _tokenizer(model: nn.Module) -> Any:
    """The tokenizer from the folder or Hub repo that the model came from."""
    from transformers import AutoTokenizer

    name = getattr(model, "name_or_path", "")
    way_out = "pass processor=, the model's processor or its tokenizer"
    if not name:
        raise ConfigError(f"{type(model).__name__} does not say where it came from, so it has no tokenizer; {way_out}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name!r} has no tokenizer ({first_line(error)}); {way_out}") from error


@torch.no_grad()
def _text_embeds(model: nn.Module, tokenizer: Any, head: Head) -> Tensor:
    """(K, D) unit vectors: of each label the mean of its prompts' directions."""
    was_training = {module for module in model.modules() if module.training}
    model.eval()  # a prompt has no dropout
    try:
        total = [_encoded(model, tokenizer, [t.replace("{}", label) for label in head.labels]) for t in head.templates]
    finally:
        for module in was_training:
            module.training = True
    mean = total[0] if len(total) == 1 else F.normalize(torch.stack(total).mean(0), dim=-1)
    if not bool(torch.isfinite(mean).all()):
        raise ConfigError(f"{type(model).__name__} gives texts embeddings that are not finite; load its weights again")
    return mean


def _encoded(model: Any, tokenizer: Any, prompts: list[str]) -> Tensor:
    """(len(prompts), D) unit vectors."""
    found = []
    for at in range(0, len(prompts), PROMPTS):
        tokens = _tokens(model, tokenizer, prompts[at : at + PROMPTS])
        found.append(F.normalize(pooled(model.get_text_features(**tokens)), dim=-1))
    return torch.cat(found)


def _tokens(model: Any, tokenizer: Any, prompts: list[str]) -> dict[str, Tensor]:
    """What the text tower takes: SigLIP was trained on prompts of full length, the others on the longest of a batch."""
    config = getattr(model, "config", None)
    longest = getattr(getattr(config, "text_config", None), "max_position_embeddings", None)
    try:
        tokens = tokenizer(prompts, return_tensors="pt", padding=True, truncation=False)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{type(tokenizer).__name__} encodes no texts ({first_line(error)}); pass the model's whole processor, or "
            "its tokenizer"
        ) from error
    length = tokens["input_ids"].shape[1]
    if longest is not None and length > longest:
        raise ConfigError(
            f"a prompt has {length} tokens, and the model reads {longest}; shorten {max(prompts, key=len)!r}"
        )
    if "siglip" in str(getattr(config, "model_type", "")):
        tokens = tokenizer(prompts, return_tensors="pt", padding="max_length", max_length=longest, truncation=False)
    parameters = parameters_of(model.get_text_features) or []
    device = next(model.parameters()).device
    return {p.name: tokens[p.name].to(device) for p in parameters if p.name in tokens}


def pooled(features: Any) -> Tensor:
    """The embeddings (B, D) in what get_image_features or get_text_features returns, in any version of transformers.

    >>> pooled(torch.zeros(2, 8)).shape
    torch.Size([2, 8])
    """
    if isinstance(features, Tensor):
        return features
    return features["pooler_output"] if isinstance(features, Mapping) else features[1]


def _with_labels(config: Any, labels: tuple[str, ...]) -> Any:
    """A copy of the configuration with these classes, as a classifier of transformers has them."""
    if config is None:
        return None
    config = copy.deepcopy(config)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: k for k, label in enumerate(labels)}
    config.problem_type = "single_label_classification"
    return config
