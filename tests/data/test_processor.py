"""The processor gives each backbone the pixels it was trained on, and refuses to guess."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import nn
from transformers import AutoImageProcessor, ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from spear_hf.data.processor import Processor, load_class_names, load_processor
from spear_hf.errors import DataError, InputError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def images() -> torch.Tensor:
    """(6, 28, 28, 3) uint8."""
    return torch.randint(0, 256, (6, 28, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def hf_model(tmp_path: Path) -> ResNetForImageClassification:
    """A tiny transformers ResNet, read from a folder that holds its image processor (28 to 64 pixels)."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
    ResNetForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 64, "width": 64}, image_mean=MEAN, image_std=STD).save_pretrained(tmp_path)
    return ResNetForImageClassification.from_pretrained(tmp_path)


def timm_model(**cfg: object) -> nn.Module:
    return timm.create_model("test_resnet", pretrained_cfg_overlay={"mean": MEAN, "std": STD, **cfg})


def test_a_transformers_model_gets_what_its_own_image_processor_makes(
    hf_model: ResNetForImageClassification, images: torch.Tensor
) -> None:
    own = AutoImageProcessor.from_pretrained(hf_model.name_or_path)
    expected = own(images=list(images.permute(0, 3, 1, 2)), return_tensors="pt")["pixel_values"]
    processor = load_processor(hf_model)
    assert torch.equal(processor(images), expected)
    assert (processor.mean, processor.std, processor.size) == (MEAN, STD, (64, 64))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_a_timm_model_gets_what_timms_own_transform_makes(
    images: torch.Tensor, interpolation: str, crop_mode: str
) -> None:
    model = timm_model(interpolation=interpolation, crop_mode=crop_mode, crop_pct=0.9)
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    expected = torch.stack([transform(Image.fromarray(image.numpy())) for image in images])
    assert torch.equal(load_processor(model)(images), expected)


@pytest.mark.parametrize("as_type", [lambda x: x, lambda x: x.numpy(), list, lambda x: x.permute(0, 3, 1, 2)])
def test_tensors_arrays_lists_and_channels_first_are_one_batch(
    images: torch.Tensor, as_type: Callable[[torch.Tensor], object]
) -> None:
    processor = load_processor(None, mean=MEAN, std=STD, size=32)
    assert torch.equal(processor(as_type(images)), processor(images))  # pyright: ignore[reportArgumentType]


def test_images_of_the_input_size_are_only_normalised(hf_model: ResNetForImageClassification) -> None:
    image = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    expected = (image.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(load_processor(hf_model)(image), expected)


def test_a_cropping_timm_model_does_not_zoom_into_ready_crops() -> None:
    model = timm_model(crop_pct=0.5)
    side = load_processor(model).size[0]
    image = torch.randint(0, 256, (1, side, side, 3), dtype=torch.uint8)
    expected = (image.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(load_processor(model)(image), expected)


def test_mixed_sizes_come_out_in_order(images: torch.Tensor) -> None:
    processor = load_processor(None, mean=MEAN, std=STD, size=32)
    mixed = [images[0], np.zeros((40, 50, 3), np.uint8), Image.fromarray(images[1].numpy())]
    out = processor(mixed)
    assert out.shape == (3, 3, 32, 32)
    assert torch.equal(out[[0, 2]], processor(images[:2]))


def test_an_empty_batch_keeps_its_shape() -> None:
    processor = load_processor(None, mean=MEAN, std=STD, size=(32, 48))
    assert processor(np.zeros((0, 8, 8, 3), np.uint8)).shape == (0, 3, 32, 48)


def test_wrapped_models_are_looked_into(hf_model: ResNetForImageClassification) -> None:
    wrapped = nn.DataParallel(hf_model)
    assert load_processor(wrapped).mean == MEAN


def test_a_name_is_read_instead_of_the_model(hf_model: ResNetForImageClassification) -> None:
    assert load_processor(nn.Linear(1, 1), name=hf_model.name_or_path).mean == MEAN
    assert load_processor(nn.Linear(1, 1), name="tf_efficientnet_lite0").mean == (0.5, 0.5, 0.5)


def test_a_revision_stands_in_the_provenance(hf_model: ResNetForImageClassification) -> None:
    assert load_processor(hf_model, revision="main").origin == f"transformers:{hf_model.name_or_path}@main"


def test_a_model_without_preprocessing_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"Sequential has no preprocessing .* pass mean=, std= and size="):
        load_processor(nn.Sequential())
    with pytest.raises(DataError, match=r"cfg of ResNet lacks mean; pass mean="):
        load_processor(timm_model(mean=None))


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no image preprocessing .* pass mean="):
        load_processor(None, name=str(tmp_path))


def test_mean_alone_is_refused() -> None:
    with pytest.raises(DataError, match="needs all three"):
        load_processor(None, mean=MEAN)


@pytest.fixture
def processor() -> Processor:
    return load_processor(None, mean=MEAN, std=STD, size=32)


def test_normalised_images_are_not_normalised_twice(processor: Processor, images: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"float32 images with values in \[-2.*look normalised already"):
        processor(processor(images))


def test_unit_range_floats_are_refused_with_the_conversion(processor: Processor) -> None:
    with pytest.raises(InputError, match=r"pass \(255 \* x\)"):
        processor(torch.rand(2, 3, 32, 32))


def test_grey_images_are_refused(processor: Processor) -> None:
    with pytest.raises(InputError, match=r"images of shape \(2, 28, 28\), but RGB"):
        processor(np.zeros((2, 28, 28), np.uint8))


def test_describe_says_where_the_numbers_come_from(hf_model: ResNetForImageClassification) -> None:
    said = load_processor(hf_model).describe()
    assert said["origin"] == f"transformers:{hf_model.name_or_path}"
    assert "do_resize=True" in said["transform"]
    assert "'height': 64" in said["transform"]


def test_a_transformers_model_names_its_classes(hf_model: ResNetForImageClassification) -> None:
    hf_model.config.id2label = {1: "bee", 0: "ant"}
    assert load_class_names(hf_model) == [("ant",), ("bee",)]


def test_an_imagenet_models_classes_have_wordnet_ids() -> None:
    from_timm = load_class_names(timm.create_model("test_resnet", num_classes=1000))
    assert from_timm is not None
    assert from_timm[0] == ("n01440764", "tench, Tinca tinca", "tench")
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=1000)
    config.id2label = {k: names[1] for k, names in enumerate(from_timm)}
    from_transformers = load_class_names(ResNetForImageClassification(config))
    assert from_transformers is not None
    assert from_transformers[517] == ("n03126707", "crane")


def test_other_models_name_no_classes() -> None:
    assert load_class_names(nn.Linear(1, 1)) is None
    assert load_class_names(timm.create_model("test_resnet", num_classes=10)) is None


@pytest.mark.parametrize(
    "given", [{str(k): f"kind {k}" for k in range(12)}, [f"kind {k}" for k in range(12)]], ids=["texts", "a list"]
)
def test_class_names_stand_in_the_order_of_their_numbers(given: Any) -> None:
    base = nn.Identity()
    base.config = SimpleNamespace(id2label=given)  # pyright: ignore[reportAttributeAccessIssue]
    assert load_class_names(base) == [(f"kind {k}",) for k in range(12)]


def test_class_names_without_numbers_are_refused() -> None:
    base = nn.Identity()
    base.config = SimpleNamespace(id2label={"ant": 0, "bee": 1})  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match=r"id2label has the keys 'ant', 'bee', \.\.\.; they must be 0 to 1"):
        load_class_names(base)


def test_the_label_names_of_a_timm_model_are_read() -> None:
    names = {"label_names": ["b", "a"], "label_descriptions": {"b": "big bee"}}
    base = timm.create_model("test_resnet", num_classes=2, pretrained_cfg_overlay=names)
    assert load_class_names(base) == [("b", "big bee"), ("a",)]


def test_a_grey_model_gets_the_luma_of_the_colors(tmp_path: Path) -> None:
    ViTImageProcessor(size={"height": 28, "width": 28}, image_mean=[0.0], image_std=[1.0]).save_pretrained(tmp_path)
    grey = nn.Sequential(nn.Conv2d(1, 2, 3))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 3), dtype=np.uint8)
    luma = torch.stack([torch.from_numpy(np.array(Image.fromarray(x).convert("L"))) for x in pixels])[:, None] / 255
    for processor in (load_processor(grey, str(tmp_path)), load_processor(grey, mean=[0.0], std=[1.0], size=28)):
        torch.testing.assert_close(processor(pixels), luma)
        assert processor([]).shape == (0, 1, 28, 28)


def test_three_means_for_a_grey_model_are_used_only_if_they_are_equal() -> None:
    assert load_processor(timm.create_model("test_resnet", in_chans=1)).mean == (0.5,)
    with pytest.raises(
        DataError, match=r"takes 1 channel\(s\), but its preprocessing has \(0.4, 0.5, 0.6\); pass mean="
    ):
        load_processor(nn.Conv2d(1, 1, 1), mean=[0.4, 0.5, 0.6], std=[1.0], size=28)
    with pytest.raises(DataError, match="takes images of 4 channels"):
        load_processor(nn.Conv2d(4, 1, 1), mean=[0.5] * 4, std=[1.0] * 4, size=28)
