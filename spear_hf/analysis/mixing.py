"""Error against alpha and the size of test batches (the paper's appendix on the mixing coefficient)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from spear_hf.analysis.adapted import ImageSet, answers, learn
from spear_hf.analysis.probe import accuracy
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import get_spear_model


class Mixed(NamedTuple):
    """One cell: the error in percent of mixing alone, and after learning."""

    domain: str
    alpha: float
    batch_size: int
    unlearned: float
    learned: float


def mixing_errors(
    base: nn.Module,
    sets: Iterable[ImageSet],
    config: SpearConfig,
    *,
    alphas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    batch_sizes: Sequence[int] = (4, 16, 64, 256),
    updates: int = 64,
) -> Iterator[Mixed]:
    """Every set at every alpha and batch size: `updates` steps, as many at each size, then the error with RSPs held.

    `base` is steered meanwhile and unloaded after.

    Raises:
        ConfigError: a network without batch norms, in which alpha changes nothing.
    """
    for data in sets:
        for alpha in alphas:
            model = get_spear_model(base, replace(config, alpha=alpha))
            try:
                if not model.has_batch_norms:
                    raise ConfigError(
                        f"{type(base).__name__} has no BatchNorm, so alpha={alpha:g} changes nothing in it; "
                        "use a network with batch norms"
                    )
                for size in batch_sizes:
                    model.reset_adapter()
                    unlearned = 100 - accuracy(answers(model, data.images, size).argmax(1), data.labels)
                    learn(Spear(model), data.images, size, updates)
                    learned = 100 - accuracy(answers(model, data.images, size).argmax(1), data.labels)
                    yield Mixed(data.domain, alpha, size, unlearned, learned)
            finally:
                model.unload()
