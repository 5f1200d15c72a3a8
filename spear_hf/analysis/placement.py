"""The five placements of RSPs that the paper's configuration analysis compares, as adapters of one SpearModel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.steering.model import SpearModel, get_spear_model


def placements(last: int) -> dict[str, tuple[int, ...]]:
    """placement -> depths of its RSPs, for boundaries 0..last.

    The paper names stem, stem+1, early, deep and all, and defines the first two and the last. Here "early" is the
    depths up to ceil(last / 2) and "deep" the others, so that early and deep together are all.

    Raises:
        ConfigError: last < 3, where several of them would be one.
    """
    if last < 3:
        raise ConfigError(
            f"boundaries 0..{last} are too few for five placements, at least 0..3 are needed; "
            "use a network with more stages, or a larger num_groups"
        )
    half = (last + 1) // 2
    every = tuple(range(last + 1))
    return {"stem": (0,), "stem+1": (0, 1), "early": every[: half + 1], "deep": every[half + 1 :], "all": every}


@contextmanager
def placed(base: nn.Module, config: SpearConfig) -> Iterator[SpearModel]:
    """Inside, a SpearModel over `base` with an adapter at the identity for each placement; unloads the base after.

    Args:
        config: of every adapter but for its boundaries.
    """
    model = get_spear_model(base, replace(config, boundaries="all"), adapter_name="all")
    try:
        for name, depths in placements(model.boundaries[-1].depth).items():
            if name != "all":
                model.add_adapter(name, replace(config, boundaries=depths))
        yield model
    finally:
        model.unload()
