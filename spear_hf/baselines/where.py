"""Where: what a method learns, and the forward in which it acts. One half of a method; the other is its Objective."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from spear_hf.baselines.buffers import buffer_layers
from spear_hf.baselines.in_place import norm_affine, weights_and_biases
from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.steering import Steering
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError


class AdaptedParameters(Protocol):
    """A place in a model where a few numbers are learned."""

    learned: ParameterSet

    @property
    def rule(self) -> OptimizerConfig | None:
        """The optimizer that this place asks for; None takes the method's."""
        ...

    @property
    def has_batch_norms(self) -> bool:
        """Whether the batch norms' share of the learning rate's scaling applies."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits, with a graph to the parameters where gradients are enabled."""
        ...

    def undo(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        ...

    def settings(self) -> dict[str, Any]:
        """What must be the same for a run to go on, JSON-ready."""
        ...


WHERE: dict[str, Callable[..., AdaptedParameters]] = {
    "norm": norm_affine,
    "weights": weights_and_biases,
    "rsp": Steering,
    "buffer": buffer_layers,
}
"""name -> (model, **its own options) -> Where."""


Place = str | AdaptedParameters | Callable[[nn.Module], AdaptedParameters]
"""A name in WHERE, a Where that is in place already, or what puts one into a model."""


def place(where: Place, model: nn.Module, *, skip: Any = None, config: SpearConfig | None = None) -> AdaptedParameters:
    """What `where` names or makes, put into `model`.

    Raises:
        ConfigError: an unknown name, or an option that belongs to another place; nothing is changed.
    """
    if isinstance(where, str) and where not in WHERE:
        raise ConfigError(f"where={where!r} is not known; allowed are {', '.join(WHERE)}, or a Where object")
    if config is not None and where != "rsp":
        raise ConfigError(f"config= says where RSPs are and how they learn, not {where!r}; pass where='rsp' with it")
    if not isinstance(where, str):
        return where(model) if callable(where) else where
    if where == "norm":
        return norm_affine(model, skip=skip)
    return Steering(model, config) if where == "rsp" else WHERE[where](model)
