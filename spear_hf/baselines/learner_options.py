"""What a user may choose for every method that learns: its optimizer, and which parameters it adapts."""

from collections.abc import Callable
from typing import Any, TypedDict

from torch import nn

from spear_hf.baselines.adapted_parameters import AdaptedParameters, AdaptedRsps, norm_affine, weights_and_biases
from spear_hf.baselines.buffer_layers import buffer_layers
from spear_hf.baselines.norms import Skip
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.utils.validation import nearest

WHERE: dict[str, Callable[..., AdaptedParameters]] = {
    "norm": norm_affine,
    "weights": weights_and_biases,
    "rsp": AdaptedRsps,
    "buffer": buffer_layers,
}
"""name -> (model, **its own options) -> AdaptedParameters."""

Where = str | AdaptedParameters | Callable[[nn.Module], AdaptedParameters]
"""A name in WHERE, AdaptedParameters that are in a model already, or a function that puts some into a model."""


class LearnerOptions(TypedDict, total=False):
    """What a user may choose for every Learner; None leaves the choice to the method.

    optimizer, learning_rate, momentum, nesterov, scale_lr: single fields of the method's OptimizerConfig.
    where: "norm" (gamma and beta of the normalisation layers), "weights", "rsp", "buffer", AdaptedParameters that are
        in the model already, or a function that puts some into it: partial(buffer_layers, boundaries=(0, 1)).
    skip: normalisation layers that are not adapted, () for none; see `kept_norms`.
    config: of the RSPs, for where="rsp".
    accelerator: more than one process is refused: the statistics of a slice are not those of the batch.

    >>> from spear_hf.baselines.learner_options import LearnerOptions
    >>> options: LearnerOptions = {"where": "rsp", "learning_rate": 0.01}
    """

    optimizer: str | None
    learning_rate: float | None
    momentum: float | None
    nesterov: bool | None
    scale_lr: bool | None
    where: Where | None
    skip: Skip
    config: SpearConfig | None
    accelerator: Any


def given(options: LearnerOptions) -> LearnerOptions:
    """Those options that are not None.

    Raises:
        ConfigError: one that does not exist.

    >>> from spear_hf.baselines.learner_options import given
    >>> given({"where": None, "learning_rate": 0.01})
    {'learning_rate': 0.01}
    """
    for name in options:
        if name not in LearnerOptions.__annotations__:
            raise ConfigError(f"no option {name!r}; {nearest(name, LearnerOptions.__annotations__)}")
    chosen: Any = {name: value for name, value in options.items() if value is not None}
    return chosen


def before_last_stage(options: LearnerOptions) -> LearnerOptions:
    """The options; normalisation layers of the last stage are skipped unless the options say otherwise.

    >>> from spear_hf.baselines.learner_options import before_last_stage
    >>> before_last_stage({})
    {'skip': 'last_stage'}
    """
    defaults: LearnerOptions = {"skip": "last_stage"}
    return {**defaults, **given(options)}


def adapt(
    model: nn.Module, where: Where = "norm", *, skip: Skip = None, config: SpearConfig | None = None
) -> AdaptedParameters:
    """The parameters that `where` names or makes, put into `model`.

    Raises:
        ConfigError: an unknown name, or an option that belongs to another name; nothing is changed.

    >>> import timm
    >>> from spear_hf.baselines.learner_options import adapt
    >>> adapt(timm.create_model("test_resnet"), "weights").settings()["where"]
    'weights'
    """
    if isinstance(where, str) and where not in WHERE:
        raise ConfigError(f"where={where!r} is not known; allowed are {', '.join(WHERE)}, or AdaptedParameters")
    if config is not None and where != "rsp":
        raise ConfigError(f"config= says where RSPs are and how they learn, not {where!r}; pass where='rsp' with it")
    if not isinstance(where, str):
        return where(model) if callable(where) else where
    if where == "norm":
        return norm_affine(model, skip=skip)
    return AdaptedRsps(model, config) if where == "rsp" else WHERE[where](model)
