"""Buffer: Tent on buffer layers, beside a base of which nothing moves (Kim et al. 2025)."""

from collections.abc import Sequence
from functools import partial

from torch import nn
from typing_extensions import Unpack

from spear_hf.baselines.buffers import buffer_layers
from spear_hf.baselines.options import Options
from spear_hf.baselines.tent import Tent
from spear_hf.boundaries import Boundary
from spear_hf.errors import ConfigError


class Buffer(Tent):
    """Tent's objective on small convolutions beside the stem, which alone learn; the base is under batch statistics.

    The paper does not say which method its rows named Buffer host; this is Tent. For another host give it the place:
    METHODS["roid"](model, where="buffer"). Published with Adam at 1e-3, whose first step moves alpha by as much, so
    that the learning rate rather than `alpha` says how strong the layers become. The authors' code puts further layers
    after the activations inside the first stages of its CIFAR networks: pass Boundary objects for these.

    Args:
        model: any image classifier with stage boundaries.
        boundaries, alpha, learn_norms, seed: see `buffer_layers`.
        options: see Options, but for `where`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        boundaries: Sequence[int | str | Boundary] = (0,),
        alpha: float = 1e-4,
        learn_norms: bool = False,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        if options.get("where") is not None:
            raise ConfigError(
                f"Buffer learns buffer layers, not {options.get('where')!r}; leave where= out, or use METHODS['tent']"
            )
        layers = partial(buffer_layers, boundaries=boundaries, alpha=alpha, learn_norms=learn_norms, seed=seed)
        super().__init__(model, **{**options, "where": layers})
