"""One learned adapter for all tests of this folder: it is drawn once a session, and each test gets a copy."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spear_hf import SpearConfig, get_spear_model
from spear_hf.steering.model import SpearModel


@pytest.fixture(scope="session")
def drawn_model(drawn_net: tuple[nn.Module, Tensor]) -> SpearModel:
    """An adapter on the TinyNet of this session, 0.1 away from the identity in each of its numbers."""
    steered = get_spear_model(copy.deepcopy(drawn_net[0]), SpearConfig(boundaries=(0, 2), alpha=0.5))
    with torch.no_grad():
        for parameter in steered.adapter_parameters():
            parameter.add_(0.1)
    return steered


@pytest.fixture(scope="session")
def drawn_folder(drawn_model: SpearModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that adapter; tests copy it before they change a file."""
    return drawn_model.save_pretrained(tmp_path_factory.mktemp("drawn") / "fog")


@pytest.fixture
def model(drawn_model: SpearModel) -> SpearModel:
    """A learned adapter on a copy of `net`."""
    return copy.deepcopy(drawn_model)


@pytest.fixture
def saved(drawn_folder: Path, tmp_path: Path) -> Path:
    """A folder with a learned adapter of `net`."""
    return Path(shutil.copytree(drawn_folder, tmp_path / "fog"))
