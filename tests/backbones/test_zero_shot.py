import copy
import pickle
from pathlib import Path

import pytest
import torch

from spear_hf import Spear, get_spear_model
from spear_hf.backbones.fingerprint import KnownBase, fingerprint, weights_hash
from spear_hf.backbones.origin import origin_of
from spear_hf.backbones.zero_shot import ZeroShotClassifier
from spear_hf.errors import ConfigError, SpearError
from tests.two_towers import LABELS, images_for, tiny_clip, word_tokenizer

TOKENIZER = word_tokenizer()


def spoken(*labels: str, templates: str | None = None) -> ZeroShotClassifier:
    return ZeroShotClassifier(tiny_clip(), labels or LABELS, TOKENIZER, templates)


def test_the_fingerprint_is_that_of_the_model() -> None:
    assert fingerprint(spoken()) == fingerprint(tiny_clip())
    assert origin_of(spoken()).library == "transformers"


def test_labels_and_templates_tell_bases_apart() -> None:
    assert len({weights_hash(each) for each in (spoken(), spoken("cat", "car"), spoken(templates="the {}."))}) == 3
    assert KnownBase(spoken()).difference(KnownBase(spoken("cat", "car", "dog"))()) == (
        "other labels ('dog' at 1, expected 'car')"
    )
    assert KnownBase(spoken()).difference(KnownBase(spoken())()) is None


def test_a_stream_of_other_labels_is_refused(tmp_path: Path) -> None:
    tta = Spear(get_spear_model(spoken()))
    tta.step(**images_for(None), streams="cam")
    tta.streams["cam"].save(tmp_path / "cam")
    with pytest.raises(SpearError, match="other labels"):
        Spear(get_spear_model(spoken("cat", "car", "bird"))).streams.load("cam", tmp_path / "cam")


def test_copies_answer_the_same() -> None:
    model, images = spoken(), images_for(None)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(**images).logits, model(**images).logits)


def test_the_text_tower_is_in_evaluation_mode_for_prompts_alone() -> None:
    model = tiny_clip().train()
    ZeroShotClassifier(model, LABELS, TOKENIZER)
    assert all(module.training for module in model.modules())


def test_texts_of_nan_are_refused() -> None:
    model = tiny_clip()
    model.text_projection.weight.data[0] = torch.nan
    with pytest.raises(ConfigError, match="embeddings that are not finite"):
        ZeroShotClassifier(model, LABELS, TOKENIZER)


def test_what_goes_with_images_is_shown_in_the_signature() -> None:
    from spear_hf.utils.model_inputs import arguments_of
    from tests.two_towers import tiny_siglip2

    names = arguments_of(ZeroShotClassifier(tiny_siglip2(), LABELS, TOKENIZER)).names
    assert names[:3] == ("pixel_values", "pixel_attention_mask", "spatial_shapes")
