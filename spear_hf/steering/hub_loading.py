"""From a folder or a Hub repo onto a model: `fetch`, then the strict loading of `spear_hf.steering.loading`."""

from pathlib import Path
from typing import Any

from torch import nn

import spear_hf.steering.loading
from spear_hf.adapters.download import Token, fetch
from spear_hf.steering.loading import CheckBase, LoadReport
from spear_hf.steering.model import SpearModel


def load_spear_model(
    model: nn.Module,
    source: str | Path,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    token: Token = None,
    adapter_name: str = "default",
    check_base: CheckBase = "error",
    inputs: Any = None,
) -> SpearModel:
    """A SpearModel over `model`, steered by a saved adapter.

    Args:
        source, revision, subfolder, token: where it is, as for `fetch`.
        adapter_name, check_base, inputs: as for `spear_hf.steering.loading.load_spear_model`.

    Raises:
        AdapterError, BoundaryError, and what `fetch` raises: nothing of `model` is changed.
    """
    folder = fetch(source, revision=revision, subfolder=subfolder, token=token)
    return spear_hf.steering.loading.load_spear_model(
        model, folder, adapter_name=adapter_name, check_base=check_base, inputs=inputs
    )


def load_adapter(
    model: SpearModel,
    source: str | Path,
    adapter_name: str,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    token: Token = None,
    overwrite: bool = False,
    check_base: CheckBase = "error",
) -> LoadReport:
    """Add a saved adapter to a steered model; not active until `set_adapter`.

    Args:
        source, revision, subfolder, token: where it is, as for `fetch`.
        overwrite, check_base: as for `spear_hf.steering.loading.load_adapter`.

    Raises:
        AdapterError, and what `fetch` raises: nothing is changed.
    """
    folder = fetch(source, revision=revision, subfolder=subfolder, token=token)
    return spear_hf.steering.loading.load_adapter(
        model, folder, adapter_name, overwrite=overwrite, check_base=check_base
    )
