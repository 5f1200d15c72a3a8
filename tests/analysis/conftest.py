"""What the tests of the analysis share."""

import pytest
import torch
from torch import Tensor

from spear_hf.analysis import ImageSet


@pytest.fixture
def data(images: Tensor) -> ImageSet:
    """Sixteen images of ten classes."""
    return ImageSet("noise", images, torch.arange(16) % 10)
