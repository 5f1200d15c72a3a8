"""Small random models of images and texts, and a tokenizer and a processor for them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
)

LABELS = ["cat", "dog", "bird"]
TEMPLATES = ["a photo of a {}.", "a blurry photo of the {}."]
SIDE, PATCH, LONGEST = 32, 8, 16

_WORDS = ["<pad>", "<unk>", "<s>", "</s>", *["a", "photo", "of", "the", "blurry", "cat", "dog", "bird", "car", "."]]
_SIZE = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
_ENDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
_TEXT = _SIZE | _ENDS | {"num_hidden_layers": 1, "vocab_size": len(_WORDS), "max_position_embeddings": LONGEST}
_VISION = _SIZE | {"num_hidden_layers": 10, "patch_size": PATCH}  # beside ten layers SigLIP's pooling is no stage
_FEW = _VISION | {"num_hidden_layers": 2}


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each of a few words."""
    found = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=found, **special)


def tiny_clip() -> CLIPModel:
    torch.manual_seed(0)
    config = CLIPConfig(text_config=_TEXT, vision_config=_FEW | {"image_size": SIDE}, projection_dim=8)
    return CLIPModel(config).eval()


def tiny_siglip() -> SiglipModel:
    torch.manual_seed(0)
    text = _TEXT | {"projection_size": 8}
    return SiglipModel(SiglipConfig(text_config=text, vision_config=_VISION | {"image_size": SIDE})).eval()


def tiny_siglip2() -> Siglip2Model:
    torch.manual_seed(0)
    text, patches = _TEXT | {"projection_size": 8}, (SIDE // PATCH) ** 2
    return Siglip2Model(Siglip2Config(text_config=text, vision_config=_VISION | {"num_patches": patches})).eval()


def images_for(model: Any, n: int = 4) -> dict[str, Tensor]:
    """What the model's image processor gives: images, or patches with a mask and their shapes."""
    generator = torch.Generator().manual_seed(0)
    if not isinstance(model, Siglip2Model):
        return {"pixel_values": torch.randn(n, 3, SIDE, SIDE, generator=generator)}
    side = SIDE // PATCH
    return {
        "pixel_values": torch.randn(n, side * side, 3 * PATCH * PATCH, generator=generator),
        "pixel_attention_mask": torch.ones(n, side * side, dtype=torch.long),
        "spatial_shapes": torch.full((n, 2), side),
    }


def save_clip(folder: Path) -> Path:
    """A folder as the Hub has it: the model, its image processor and its tokenizer."""
    tiny_clip().save_pretrained(folder)
    size: dict[str, Any] = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    CLIPProcessor(CLIPImageProcessor(**size), word_tokenizer()).save_pretrained(folder)
    return folder
