"""What a method learns, and the forward in which it acts: parameters of the base, or RSPs beside it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.baselines.norms import ModelFlags, Skip, has_only_layer_norms, kept_norms, use_batch_statistics
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.parameter_set import ParameterSet
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.lean import LeanForward
from spear_hf.steering.model import SpearModel, get_spear_model
from spear_hf.utils.batch import logits_of


class AdaptedParameters(Protocol):
    """Learned parameters that are in place in a model.

    >>> import timm
    >>> from spear_hf.baselines.adapted_parameters import AdaptedParameters, norm_affine
    >>> adapted: AdaptedParameters = norm_affine(timm.create_model("test_resnet"))
    >>> adapted.is_transformer
    False
    """

    learned: ParameterSet

    @property
    def optimizer_config(self) -> OptimizerConfig | None:
        """The optimizer for these parameters; None takes the method's own."""
        ...

    @property
    def is_transformer(self) -> bool:
        """Whether the norms of the model are layer norms, on which the scaling of the learning rate depends."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits, with a graph to the parameters where gradients are enabled."""
        ...

    def undo(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        ...

    def settings(self) -> dict[str, Any]:
        """What must be the same for a run to continue, JSON-ready."""
        ...


class InPlace:
    """A base in evaluation mode, frozen but for some parameters, with hooks; `undo` takes all of it back.

    Args:
        model: changed in place.
        parameters: what is learned.
        handles: of the hooks that `undo` removes.
        kind: what the parameters are, for `settings`.
        optimizer_config: the optimizer for these parameters; None takes the method's own.

    Raises:
        ConfigError: parameters in half precision, which rounds steps of 1e-4 away; the hooks are removed.

    >>> import torch
    >>> from spear_hf.baselines.adapted_parameters import InPlace
    >>> net = torch.nn.Linear(4, 3)
    >>> adapted = InPlace(net, [net.bias], [], kind={"where": "bias"})
    >>> adapted.settings(), net.weight.requires_grad
    ({'where': 'bias', 'count': 3}, False)
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        handles: Sequence[RemovableHandle],
        *,
        kind: dict[str, Any],
        optimizer_config: OptimizerConfig | None = None,
    ) -> None:
        self._handles = list(handles)
        if half := {p.dtype for p in parameters} - {torch.float32, torch.float64}:
            self._remove_hooks()
            raise ConfigError(
                f"parameters of {type(model).__name__} are {half.pop()}, which rounds small steps away; cast the model "
                'to float32, or pass where="rsp", whose RSPs stay float32'
            )
        self.model = model
        self.optimizer_config = optimizer_config
        self.learned = ParameterSet(parameters)
        self._flags = ModelFlags(model)
        self._kind = kind
        model.eval().requires_grad_(False)
        for parameter in self.learned.parameters:
            parameter.requires_grad_(True)

    @property
    def is_transformer(self) -> bool:
        """Whether the norms of the base are layer norms."""
        return has_only_layer_norms(self.model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits, in evaluation mode even after someone called `train()`."""
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


def norm_parameters(model: nn.Module, skip: Skip = None) -> list[nn.Parameter]:
    """gamma and beta of the batch, layer and group norms that `skip` keeps; see `kept_norms`.

    Raises:
        ConfigError: there are none.

    >>> import torch
    >>> from spear_hf.baselines.adapted_parameters import norm_parameters
    >>> len(norm_parameters(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))))
    2
    """
    norms = kept_norms(model, skip=skip)
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
    """gamma and beta of the normalisation layers, in place.

    Args:
        model: any classifier with such layers.
        skip: as for `kept_norms`.
        statistics: registers hooks on the batch norms that set the statistics they normalise by.

    >>> import timm
    >>> from spear_hf.baselines.adapted_parameters import norm_affine
    >>> adapted = norm_affine(timm.create_model("test_resnet"))
    >>> len(adapted.learned.parameters)
    30
    """
    parameters = norm_parameters(model, skip)
    return InPlace(model, parameters, statistics(model), kind={"where": "norm", "skip": _listed(skip)})


def weights_and_biases(model: nn.Module) -> InPlace:
    """Every parameter named weight or bias, under batch statistics; class tokens and position embeddings stay.

    Raises:
        ConfigError: there is none.

    >>> import torch
    >>> from spear_hf.baselines.adapted_parameters import weights_and_biases
    >>> weights_and_biases(torch.nn.Linear(4, 3)).learned.count
    15
    """
    parameters = [
        p for m in model.modules() for name, p in m.named_parameters(recurse=False) if name in ("weight", "bias")
    ]
    if not parameters:
        raise ConfigError(f"{type(model).__name__} has no parameter named weight or bias; pass where='rsp'")
    return InPlace(model, parameters, use_batch_statistics(model), kind={"where": "weights"})


def _listed(skip: Skip) -> Any:
    return skip if skip is None or isinstance(skip, str) else list(skip)


class AdaptedRsps:
    """The RSPs of the active adapter, with the alpha-mixing of their SpearModel; the base stays frozen.

    Args:
        model: a SpearModel, or a base that is made one.
        config: placement, alpha and Adam's settings. SPeaR's gate and loss weights belong to its own objective and are
            not used here.

    Raises:
        ConfigError: a SpearModel and a config, or no active adapter.

    >>> import timm
    >>> from spear_hf.baselines.adapted_parameters import AdaptedRsps
    >>> AdaptedRsps(timm.create_model("test_resnet")).optimizer_config.learning_rate
    0.02
    """

    def __init__(self, model: nn.Module, config: SpearConfig | None = None) -> None:
        if isinstance(model, SpearModel) and config is not None:
            raise ConfigError("this SpearModel has its configuration already; leave config= out, or pass its base")
        self.model = model if isinstance(model, SpearModel) else get_spear_model(model, config)
        if self.model.active_adapter is None:
            raise ConfigError("no adapter is active, so there is nothing to learn; call model.set_adapter(name) first")
        self._config = self.model.peft_config[self.model.active_adapter]
        betas = self._config.adam_beta1, self._config.adam_beta2
        self.optimizer_config = OptimizerConfig("adam", self._config.learning_rate, betas=betas)
        self.learned = ParameterSet(list(self.model.adapter_parameters()))

    @property
    def is_transformer(self) -> bool:
        """Whether the norms of the base are layer norms."""
        return has_only_layer_norms(self.model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits with a graph that starts at the first RSP."""
        with LeanForward():
            return logits_of(self.model(x))

    def undo(self) -> nn.Module:
        """The base, bit for bit as it came in; the adapter keeps what it learned."""
        return self.model.unload()

    def settings(self) -> dict[str, Any]:
        """The adapter's configuration."""
        return {"where": "rsp", "count": self.learned.count} | self._config.to_dict()
