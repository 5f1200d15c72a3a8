"""Zero-shot: models of images and texts.

`get_spear_model(model, labels=[...], processor=processor)` makes a classifier of CLIP or SigLIP: the texts are encoded
once and frozen, the RSPs are in the vision tower, and logits have the model's own scale. Tested on small random models
of the real classes.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessor, Trainer, TrainingArguments, pipeline

from spear_hf import AutoSpearModel, Spear, SpearModel, get_spear_model, load_base_model
from spear_hf.backbones.zero_shot import ZeroShotClassifier
from spear_hf.errors import BaseModelMismatchError, ConfigError, InputError, ModelNotFoundError
from tests.builders import spear_hf, tiny_vit, write_pictures
from tests.support.table import refused, works
from tests.two_towers import (
    LABELS,
    LONGEST,
    TEMPLATES,
    images_for,
    save_clip,
    tiny_clip,
    tiny_siglip,
    tiny_siglip2,
    word_tokenizer,
)

TOKENIZER = word_tokenizer()
WORDS: dict[str, Any] = {"labels": LABELS, "processor": TOKENIZER}


def own_logits(model: Any, images: dict[str, Tensor], template: str = TEMPLATES[0]) -> Tensor:
    """What the model itself gives to these images and prompts."""
    full = {"padding": "max_length", "max_length": LONGEST} if "siglip" in model.config.model_type else {}
    prompts = [template.replace("{}", label) for label in LABELS]
    tokens = TOKENIZER(prompts, return_tensors="pt", return_token_type_ids=False, **full)
    return model(**tokens, **images).logits_per_image.detach()


@works("CLIPModel, SiglipModel, Siglip2Model with `labels=`", "the model's own logits, then it learns")
@pytest.mark.parametrize("make", [tiny_clip, tiny_siglip, tiny_siglip2])
def test_two_towers_answer_as_the_model_and_learn(make: Any) -> None:
    base = make()
    images, before = images_for(base), {name: value.clone() for name, value in base.state_dict().items()}
    expected = own_logits(base, images)
    model = get_spear_model(base, **WORDS)
    tta = Spear(model)
    torch.testing.assert_close(tta.step(**images), expected)
    assert tta.last.adapted
    assert all("vision_model" in boundary.module for boundary in model.boundaries)
    assert model.unload() is base
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


@works("a logit scale of 100, with the default configuration", "what is learned does not depend on the scale")
def test_two_towers_learn_at_a_logit_scale_of_100() -> None:
    base = tiny_clip()
    base.logit_scale.data.fill_(4.6052)
    tta = Spear(get_spear_model(base, **WORDS))
    for _ in range(2):
        tta.step(**images_for(None))
    assert all(float(value.detach().std()) > 0.01 for value in tta.parameters())


@works("prompt templates: `templates=[...]`", "the mean of the prompts' directions")
def test_templates_are_averaged() -> None:
    one, other, both = (
        ZeroShotClassifier(tiny_clip(), **WORDS, templates=t).text_embeds for t in (*TEMPLATES, TEMPLATES)
    )
    torch.testing.assert_close(both, torch.nn.functional.normalize(one + other, dim=-1))


@works("save and load", "labels and templates are in the adapter; the tokenizer is given, or is where the model is")
def test_labels_and_templates_are_saved(tmp_path: Path) -> None:
    model, images = get_spear_model(tiny_clip(), **WORDS, templates=TEMPLATES), images_for(None)
    Spear(model).step(**images)
    model.save_pretrained(tmp_path)
    assert "bird" in (tmp_path / "README.md").read_text()
    again = SpearModel.from_pretrained(tiny_clip(), tmp_path, processor=TOKENIZER)
    assert again.head == model.head
    assert torch.equal(again(**images).logits, model(**images).logits)


@pytest.mark.slow
@works("half precision: an adapter of a bfloat16 or float16 model on the float32 one, and back", "the same base")
@pytest.mark.parametrize("make", [tiny_clip, tiny_siglip])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_same_model(make: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    images = images_for(None)["pixel_values"]
    for learned, loaded in ((dtype, torch.float32), (torch.float32, dtype)):
        tta = Spear(get_spear_model(make().to(learned), **WORDS))
        tta.step(images.to(learned))
        folder = tta.model.save_pretrained(tmp_path / str(learned))
        again = SpearModel.from_pretrained(make().to(loaded), folder, processor=TOKENIZER)
        assert again(images.to(loaded)).logits.dtype == loaded


@pytest.mark.slow
@works("`AutoSpearModel.from_pretrained(adapter)`", "builds the model and its labels too")
def test_auto_builds_the_model_and_its_labels(tmp_path: Path) -> None:
    model = get_spear_model(load_base_model(str(save_clip(tmp_path / "clip")), labels=LABELS))
    Spear(model).step(**images_for(None))
    again = AutoSpearModel.from_pretrained(model.save_pretrained(tmp_path / "fog"))
    assert torch.equal(again(**images_for(None)).logits, model(**images_for(None)).logits)


@works('`pipeline("image-classification", model=steered)`', "the labels")
def test_a_pipeline_of_a_zero_shot_model() -> None:
    model = get_spear_model(tiny_clip(), **WORDS)
    processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    found = pipeline("image-classification", model=model, image_processor=processor)(Image.new("RGB", (40, 40), "red"))
    assert {each["label"] for each in found} == set(LABELS)


@works("`Trainer(model=steered).predict()`", "the logits, and the cross-entropy to the labels")
def test_trainer_of_a_zero_shot_model(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
    model, images = get_spear_model(tiny_clip(), **WORDS), images_for(None)["pixel_values"]
    rows = [{"pixel_values": image, "labels": k % 3} for k, image in enumerate(images)]
    found = Trainer(model, args).predict(rows)  # pyright: ignore[reportArgumentType]
    expected = torch.nn.functional.cross_entropy(model(images).logits.detach(), torch.tensor([0, 1, 2, 0]))
    assert found.predictions.shape == (4, 3)
    assert found.metrics["test_loss"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.slow
@works("`spear-hf adapt MODEL photos/ --labels cat,dog --templates prompts.txt`", "answers in the words of the labels")
def test_the_command_takes_labels(tmp_path: Path) -> None:
    model, photos = save_clip(tmp_path / "clip"), write_pictures(tmp_path / "photos", 6)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(TEMPLATES))
    words = ("--labels", ",".join(LABELS), "--templates", prompts, "--output", tmp_path / "run", "--no-page")
    done = spear_hf("adapt", model, photos, *words)
    assert done.exit_code == 0, done.stderr
    with (tmp_path / "run" / "predictions.csv").open() as file:
        assert {row["class_name"] for row in csv.DictReader(file)} <= set(LABELS)
    adapter = json.loads(next((tmp_path / "run" / "adapters").rglob("adapter_config.json")).read_text())
    assert adapter["head"] == {"labels": LABELS, "templates": TEMPLATES}


@refused("`spear-hf adapt CLIP photos/` without labels", ModelNotFoundError, "give the classes of this model of images")
def test_the_command_without_labels(tmp_path: Path) -> None:
    load_base_model(str(save_clip(tmp_path / "clip")))


@refused("CLIPModel without labels", InputError, "name the classes: get_spear_model(model, labels=")
def test_two_towers_without_labels() -> None:
    get_spear_model(tiny_clip())


@refused("labels for a classifier", ConfigError, "has no text tower; allowed is a model of images and texts")
def test_labels_for_a_classifier() -> None:
    get_spear_model(tiny_vit(), **WORDS)


@refused("one label", ConfigError, "give two names or more")
def test_one_label() -> None:
    get_spear_model(tiny_clip(), labels=["cat"], processor=TOKENIZER)


@refused("a label twice", ConfigError, "labels hold 'cat' twice; give each class a name of its own")
def test_a_label_twice() -> None:
    get_spear_model(tiny_clip(), labels=["cat", "dog", "cat"], processor=TOKENIZER)


@refused("labels as a set or a dictionary", ConfigError, "whose order need not be that of the classes; give a list")
@pytest.mark.parametrize("labels", [set(LABELS), {"dog": 1, "cat": 0}, dict(enumerate(LABELS))])
def test_labels_without_an_order(labels: Any) -> None:
    get_spear_model(tiny_clip(), labels=labels, processor=TOKENIZER)


@refused('a template without "{}"', ConfigError, 'give prompts with one "{}", where the label stands')
def test_a_template_without_a_place() -> None:
    get_spear_model(tiny_clip(), **WORDS, templates="a photo")


@refused("a prompt that is longer than the text tower reads", ConfigError, "shorten 'a photo of a cat cat")
def test_a_prompt_that_is_too_long() -> None:
    get_spear_model(tiny_siglip(), labels=["cat " * 20, "dog"], processor=TOKENIZER)


@refused("no processor, and a model that came from nowhere", ConfigError, "so it has no tokenizer; pass processor=")
def test_no_processor() -> None:
    get_spear_model(tiny_clip(), labels=LABELS)


@refused("an image processor in place of the processor", ConfigError, "CLIPImageProcessor encodes no texts")
def test_an_image_processor() -> None:
    get_spear_model(tiny_clip(), labels=LABELS, processor=CLIPImageProcessor())


@refused("to load an adapter on other labels", BaseModelMismatchError, "has other labels ('car' at 1, expected 'dog')")
def test_an_adapter_on_other_labels(tmp_path: Path) -> None:
    model = get_spear_model(tiny_clip(), **WORDS)
    Spear(model).step(**images_for(None))
    other = get_spear_model(tiny_clip(), labels=["cat", "car", "bird"], processor=TOKENIZER)
    other.load_adapter(model.save_pretrained(tmp_path), "fog")
