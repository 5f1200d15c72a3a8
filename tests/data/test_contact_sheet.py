"""A contact sheet shows the pixels of a stream."""

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from spear_hf.data.contact_sheet import contact_sheet
from spear_hf.data.load_stream import load_stream

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class")


def test_a_contact_sheet_shows_the_pixels_of_a_stream() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    sheet = contact_sheet(image, corruptions="contrast, gaussian_noise", tile=32)
    cell = load_stream(Dataset.from_dict({"image": [image]}), corruptions="gaussian_noise", severity=2).batch(0)
    left, top = 170 + 38 * 2, 32 + 38
    shown = np.asarray(sheet.crop((left, top, left + 32, top + 32)))
    assert np.array_equal(shown, cell["pixel_values"][0].numpy())
    assert sheet.size == (170 + 38 * 6, 32 + 38 * 2)
