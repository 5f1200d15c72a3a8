"""transformers: Trainer and pipeline.

Tested on small random models of the real classes.
"""

import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Trainer, TrainingArguments, ViTImageProcessor, pipeline

from spear_hf import Guard, Spear, SpearConfig, get_spear_model
from spear_hf.errors import ConfigError, InputError
from spear_hf.integrations.trainer import SpearTrainer
from tests.builders import TwoStages, learner, steered, tiny_resnet, tiny_vit
from tests.support.table import refused, works

ALONE = SpearConfig.paper(tau=0.0, hard_gate=False)


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    """Ten images with labels, and a column that no model takes."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, Any]:
        pixels = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(i))
        return {"pixel_values": pixels, "labels": i % 2, "taken_at": i}


IMAGES = Images()
ALL = torch.stack([row["pixel_values"] for row in map(IMAGES.__getitem__, range(10))])


@pytest.fixture
def said() -> Iterator[StringIO]:
    """What transformers says."""
    handler, logger = logging.StreamHandler(StringIO()), logging.getLogger("transformers")
    logger.addHandler(handler)
    yield handler.stream
    logger.removeHandler(handler)


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder), report_to=[], use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=4, logging_steps=1000
    )


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


@works("`Trainer(model=steered, compute_metrics=...).evaluate()`, `.predict()`", "the base's loss, metrics and labels")
def test_trainer_gives_the_loss_metrics_and_labels_of_the_base(tmp_path: Path) -> None:
    base = tiny_vit()
    theirs = Trainer(base, arguments(tmp_path), compute_metrics=accuracy).predict(IMAGES)
    ours = Trainer(get_spear_model(base), arguments(tmp_path), compute_metrics=accuracy)
    found, counted = ours.predict(IMAGES), ours.evaluate(IMAGES)
    assert np.array_equal(found.predictions, theirs.predictions)
    assert np.array_equal(found.label_ids, theirs.label_ids)
    for name in ("loss", "accuracy"):
        assert found.metrics[f"test_{name}"] == counted[f"eval_{name}"] == theirs.metrics[f"test_{name}"]


@works("`SpearTrainer(Spear(model), args).predict(images)`: adapt while predicting", "what `step` answers")
def test_spear_trainer_adapts_while_it_predicts(tmp_path: Path) -> None:
    by_hand = Spear(get_spear_model(tiny_resnet(), ALONE))
    expected = torch.cat([by_hand.step(batch) for batch in ALL.split(4)])
    tta = Spear(get_spear_model(tiny_resnet(), ALONE))
    found = SpearTrainer(tta, arguments(tmp_path), compute_metrics=accuracy).predict(IMAGES)
    assert torch.equal(torch.from_numpy(found.predictions), expected)
    assert tta.num_steps == 3
    assert {"test_loss", "test_accuracy"} <= found.metrics.keys()
    assert all(torch.equal(a, b) for a, b in zip(tta.parameters(), by_hand.parameters(), strict=True))


@works("`SpearTrainer(Guard(Spear(model)), args).evaluate(images)`: the same, watched")
def test_spear_trainer_takes_a_guard(tmp_path: Path) -> None:
    tta = Guard(Spear(get_spear_model(tiny_resnet(), ALONE)))
    assert "eval_loss" in SpearTrainer(tta, arguments(tmp_path)).evaluate(IMAGES)
    assert tta.num_steps == 3


@works("`SpearTrainer` of a timm or torchvision model, or one's own", "the logits, and the cross-entropy to the labels")
def test_spear_trainer_of_a_model_without_labels(tmp_path: Path) -> None:
    tta = learner(TwoStages().eval())
    found = SpearTrainer(tta, arguments(tmp_path), compute_metrics=accuracy).predict(IMAGES)
    assert found.predictions.shape == (10, 10)
    assert {"test_loss", "test_accuracy"} <= found.metrics.keys()


@refused(
    "`Trainer` of such a model, which takes no labels", InputError, "leave them out, or let SpearTrainer take the loss"
)
def test_trainer_of_a_model_without_labels(tmp_path: Path) -> None:
    Trainer(steered(TwoStages().eval()), arguments(tmp_path)).evaluate(IMAGES)


@works("`Trainer(model=steered, train_dataset=...).train()`", "a supervised epoch of the RSPs; the base stays as it is")
def test_trainer_trains_the_rsps_alone(tmp_path: Path) -> None:
    model = get_spear_model(tiny_vit())
    before = {name: value.clone() for name, value in model.base_model.state_dict().items()}
    args = arguments(tmp_path)
    args.max_steps, args.save_strategy = 2, "no"
    Trainer(model, args, train_dataset=IMAGES).train()
    assert any(bool((rsp.beta != 0).any()) for several in model.rsps().values() for rsp in several)
    assert all(torch.equal(value, before[name]) for name, value in model.base_model.state_dict().items())


@works('`pipeline("image-classification", model=steered, image_processor=...)`', "the labels of the base, no warning")
def test_pipeline_takes_a_steered_model_without_a_warning(said: StringIO) -> None:
    base, image = tiny_vit(), Image.new("RGB", (40, 40), "red")
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    theirs = pipeline("image-classification", model=base, image_processor=processor)(image)
    ask = pipeline("image-classification", model=get_spear_model(base), image_processor=processor)
    assert ask(image) == theirs
    assert "SpearModel" not in said.getvalue()


@refused("`SpearTrainer` of a method without RSPs", ConfigError, "SpearTrainer takes a learner on a SpearModel")
def test_spear_trainer_of_a_model(tmp_path: Path) -> None:
    SpearTrainer(TwoStages(), arguments(tmp_path))  # pyright: ignore[reportArgumentType]


@refused(
    'a head of several labels, `problem_type="multi_label_classification"`',
    InputError,
    "allowed is a classifier with one label for each image",
)
def test_several_labels_for_an_image() -> None:
    base: Any = tiny_vit()
    base.config.problem_type = "multi_label_classification"
    get_spear_model(base)
