"""Options: what a user may choose for every method that learns."""

import inspect
from typing import Any

from spear_hf.baselines.rule import OptimizerOptions
from spear_hf.baselines.skip import Skip
from spear_hf.baselines.where import Place
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.utils.validation import nearest


class Options(OptimizerOptions, total=False):
    """What a user may choose for every learner, None being the method's own choice: the fields of Rule, and

    where: "norm" (gamma and beta of the normalisation layers), "weights", "rsp", "buffer", a Where in place already, or
        what puts one into a model: partial(buffer_layers, boundaries=(0, 1)).
    skip: normalisation layers to leave alone, () for none; see `kept_norms`.
    config: of the RSPs, for where="rsp".
    accelerator: more than one process is refused: the statistics of a slice are not those of the batch.
    """

    where: Place | None
    skip: Skip
    config: SpearConfig | None
    accelerator: Any


def given(options: Options) -> Options:
    """Those options that are not None.

    Raises:
        ConfigError: one that does not exist.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise ConfigError(f"no option {name!r}; {nearest(name, Options.__annotations__)}")
    chosen: Any = {name: value for name, value in options.items() if value is not None}
    return chosen


def before_last_stage(options: Options) -> Options:
    """The options, with normalisation layers of the last stage left alone unless they say otherwise."""
    defaults: Options = {"skip": "last_stage"}
    return {**defaults, **given(options)}


def signature_of(method: type) -> inspect.Signature:
    """What a method takes, with the options by name in place of `**options`."""
    own = [p for p in inspect.signature(method.__init__).parameters.values() if p.kind is not p.VAR_KEYWORD][1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(own + [inspect.Parameter(name, kind, default=None) for name in Options.__annotations__])
