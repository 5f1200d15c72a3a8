"""Parameters of the base itself, learned in place under batch statistics: of normalisation layers, or all of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.baselines.flags import Flags
from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.skip import Skip, kept_norms
from spear_hf.baselines.statistics import use_batch_statistics
from spear_hf.errors import ConfigError
from spear_hf.steering.mixing import batch_norms
from spear_hf.utils.batch import logits_of


class InPlace:
    """A base that is frozen but for some parameters, in evaluation mode, under hooks; `undo` takes all of it back.

    Args:
        model: changed in place.
        parameters: what is learned.
        handles: of the hooks that go at the end.
        kind: what the parameters are, for settings.
        rule: the optimizer that they ask for.

    Raises:
        ConfigError: parameters in half precision, where steps of 1e-4 are rounded away; the hooks are removed.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        handles: Sequence[RemovableHandle],
        *,
        kind: dict[str, Any],
        rule: OptimizerConfig | None = None,
    ) -> None:
        self._handles = list(handles)
        if half := {p.dtype for p in parameters} - {torch.float32, torch.float64}:
            self._remove_hooks()
            raise ConfigError(
                f"parameters of {type(model).__name__} are {half.pop()}, which rounds small steps away; cast the model "
                'to float32, or pass where="rsp", whose RSPs stay float32'
            )
        self.model = model
        self.rule = rule
        self.learned = ParameterSet(parameters)
        self._flags = Flags(model)
        self._kind = kind
        model.eval().requires_grad_(False)
        for parameter in self.learned.parameters:
            parameter.requires_grad_(True)

    @property
    def has_batch_norms(self) -> bool:
        """Whether the base has any."""
        return any(True for _ in batch_norms(self.model))

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits; dropout and the like stay off, whatever `train()` was called."""
        self.model.eval()
        return logits_of(self.model(x))

    def undo(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        self.learned.put(self.learned.start)
        self._remove_hooks()
        self._flags.restore()
        return self.model

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def settings(self) -> dict[str, Any]:
        """What is learned, and how many numbers."""
        return self._kind | {"count": self.learned.count}


NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def norm_parameters(model: nn.Module, skip: Skip = None) -> list[nn.Parameter]:
    """gamma and beta of the batch, layer and group norms that `skip` leaves.

    Raises:
        ConfigError: there are none.
    """
    norms = kept_norms(model, NORMS, skip)
    found = [p for m in norms for p in (m.weight, m.bias) if isinstance(p, nn.Parameter)]
    if not found:
        raise ConfigError(
            f"{type(model).__name__} has no normalisation layer with gamma and beta to learn (skip={skip!r}); "
            'learn somewhere else: where="rsp", or where="weights"'
        )
    return found


def norm_affine(
    model: nn.Module,
    *,
    skip: Skip = None,
    statistics: Callable[[nn.Module], list[RemovableHandle]] = use_batch_statistics,
) -> InPlace:
    """gamma and beta of the normalisation layers.

    Args:
        model: any classifier with some.
        skip: as for `kept_norms`.
        statistics: puts hooks on the batch norms that say which statistics they normalise by.
    """
    parameters = norm_parameters(model, skip)
    return InPlace(model, parameters, statistics(model), kind={"where": "norm", "skip": _listed(skip)})


def weights_and_biases(model: nn.Module) -> InPlace:
    """Every parameter named weight or bias, under batch statistics; class tokens and position embeddings stay."""
    parameters = [
        p for m in model.modules() for name, p in m.named_parameters(recurse=False) if name in ("weight", "bias")
    ]
    if not parameters:
        raise ConfigError(f"{type(model).__name__} has no parameter named weight or bias; pass where='rsp'")
    return InPlace(model, parameters, use_batch_statistics(model), kind={"where": "weights"})


def _listed(skip: Skip) -> Any:
    return skip if skip is None or isinstance(skip, str) else list(skip)
