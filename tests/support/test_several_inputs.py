"""Models of several inputs.

What goes with the images has a row for each of them; `step(**batch)` passes over labels.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Guard, Spear, evaluate, get_spear_model, predict
from spear_hf.baselines import Source
from spear_hf.errors import InputError
from tests.builders import TinyBlock
from tests.support.table import refused, works


class ImageAndTable(nn.Module):
    """Five classes from an image and four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(TinyBlock(8, 8, 1), TinyBlock(8, 16, 2))
        self.fc = nn.Linear(20, 5)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.fc(torch.cat([self.layers(self.stem(image)).mean((2, 3)), table], 1))


@pytest.fixture
def image_and_table() -> Spear:
    torch.manual_seed(0)
    return Spear(
        get_spear_model(ImageAndTable(), inputs={"image": torch.randn(2, 3, 8, 8), "table": torch.randn(2, 4)})
    )


@works("an image and a row of a table: `step(**batch)`, `step(images, table=rows)`")
def test_an_image_and_a_row_of_a_table(image_and_table: Spear) -> None:
    batch = {"image": torch.randn(4, 3, 8, 8), "table": torch.randn(4, 4)}
    answer = image_and_table.predict(batch)
    assert torch.equal(image_and_table.step(**batch, labels=torch.zeros(4)), answer)
    assert image_and_table.last.adapted
    assert torch.equal(image_and_table.predict(batch), image_and_table.predict(batch["image"], table=batch["table"]))


@works("many streams of such a model: `step(**batch, streams=names)`", "what a model for each stream would answer")
def test_several_inputs_of_many_streams(image_and_table: Spear) -> None:
    x, table = torch.randn(4, 3, 8, 8), torch.randn(4, 4)
    for _ in range(2):
        together = image_and_table.step(image=x, table=table, streams=["a", "b", "a", "b"])
    alone = [image_and_table.step(image=x[::2], table=table[::2], streams="c") for _ in range(2)]
    torch.testing.assert_close(together[::2], alone[1])


@works("SigLIP 2's NaFlex: `step(**processor(images))`, pixel_attention_mask and spatial_shapes", on="a random model")
def test_naflex_patches_with_masks_and_shapes() -> None:
    from transformers import Siglip2Config, Siglip2ForImageClassification

    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4, "num_attention_heads": 1}
    config = Siglip2Config(
        text_config={"bos_token_id": 0, "eos_token_id": 1}, vision_config=tower | {"num_patches": 4, "patch_size": 2}
    )
    base = Siglip2ForImageClassification(config).eval()
    shapes = torch.tensor([[2, 2], [1, 3]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    batch = {"pixel_values": torch.randn(2, 4, 12), "pixel_attention_mask": mask, "spatial_shapes": shapes}
    source = base(**batch).logits
    tta = Spear(get_spear_model(base))
    assert torch.equal(tta.step(**batch), source)
    assert tta.last.adapted


@works("flags of the base: `step(images, interpolate_pos_encoding=True)`")
def test_flags_of_the_base() -> None:
    from tests.builders import tiny_vit

    tta = Spear(get_spear_model(tiny_vit()))
    assert tta.step(torch.randn(2, 3, 48, 48), interpolate_pos_encoding=True).shape == (2, 2)


@refused("an argument that the base does not take", InputError, "the model takes no mask; allowed are image, table")
def test_an_argument_that_the_base_does_not_take(image_and_table: Spear) -> None:
    image_and_table.step(torch.randn(4, 3, 8, 8), mask=torch.ones(4))


@refused("images without what goes with them", InputError, "the model also takes table")
def test_images_without_what_goes_with_them(image_and_table: Spear) -> None:
    image_and_table.step(torch.randn(4, 3, 8, 8))


@refused("fewer rows than images", InputError, "give a row for each image")
def test_fewer_rows_than_images(image_and_table: Spear) -> None:
    image_and_table.step(torch.randn(4, 3, 8, 8), table=torch.randn(3, 4))


def batches() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "pixel_values": torch.randn(4, 3, 8, 8, generator=generator),
            "table": torch.randn(4, 4, generator=generator),
            "labels": torch.tensor([0, 1, 2, 3]),
            "taken_at": [1, 2, 3, 4],
        }
        for _ in range(3)
    ]


@works("`evaluate` and `predict` over a DataLoader of dictionaries", "the source is asked too")
def test_evaluate_and_predict_pass_on_what_goes_with_images(image_and_table: Spear) -> None:
    base = copy.deepcopy(image_and_table.model).unload()
    methods: dict[str, Any] = {"source": Source(base), "SPeaR": image_and_table}
    assert evaluate(methods, batches(), progress=False).images == 12
    image_and_table.reset()
    answers = list(predict(image_and_table, batches(), source=image_and_table.model.base_model))
    expected = base(batches()[0]["pixel_values"], batches()[0]["table"]).softmax(1).max(1).values
    assert [answer.source_probability for answer in answers[:4]] == pytest.approx(expected.tolist(), abs=1e-5)


@refused("other methods than SPeaR, and `Guard`, on such a model", InputError, "passes on images alone; take Spear")
def test_guard_on_a_model_of_several_inputs(image_and_table: Spear) -> None:
    Guard(image_and_table).step(batches()[0])
