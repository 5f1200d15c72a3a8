"""Smaller images than elsewhere: a learner is stepped many times."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def images() -> Tensor:
    """(16, 3, 16, 16), away from what the running statistics of `net` saw."""
    return torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 1.5 - 0.5
