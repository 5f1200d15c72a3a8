"""METHODS: every method that can be compared, SPeaR included, and what each of them takes."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from spear_hf.baselines.cmf import Cmf
from spear_hf.baselines.cotta import Cotta
from spear_hf.baselines.deyo import Deyo
from spear_hf.baselines.eata import Eata, Eta
from spear_hf.baselines.frozen import BnAdapt, Source
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.roid import Roid
from spear_hf.baselines.rotta import Rotta
from spear_hf.baselines.sar import Sar
from spear_hf.baselines.tent import Buffer, Tent
from spear_hf.config import SpearConfig
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import get_spear_model


def spear(model: nn.Module, *, accelerator: Any = None, **config: Any) -> Spear:
    """SPeaR on a base model, which is steered in place.

    Args:
        model: any image classifier with stage boundaries.
        accelerator: an `accelerate.Accelerator`; see Spear.
        config: fields of SpearConfig.

    Raises:
        ConfigError: a field that does not exist, or a value that is not allowed.

    >>> import timm, torch
    >>> from spear_hf import METHODS
    >>> tta = METHODS["spear"](timm.create_model("test_resnet"), tau=0.1)
    >>> tta.step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """
    return Spear(get_spear_model(model, SpearConfig.from_dict(config)), accelerator=accelerator)


@dataclass(frozen=True)
class MethodFactory:
    """A row of METHODS: calling it makes the method, `METHODS["tent"](model, learning_rate=0.01)`.

    Args:
        make: (model, **hyper-parameters and resources) -> the method.
        resources: what it takes beside hyper-parameters, of "accelerator", "source_images" (clean images, which it
            cannot do without), and "mean" and "std" (of the normalisation of the images).
        options: names of the hyper-parameters that `make` takes by its `**`; None is their default.
        completed: chosen hyper-parameters -> all of them, JSON-ready; None adds the defaults in the signature of
            `make`.

    >>> from spear_hf.baselines import METHODS
    >>> METHODS["bn_adapt"].hyperparameters({}), METHODS["eata"].needs_source
    ({'alpha': 0.5, 'unbiased': False}, True)
    """

    make: Callable[..., TTAMethod]
    resources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    completed: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    def __call__(self, *args: Any, **keywords: Any) -> TTAMethod:
        """The method on a model."""
        return self.make(*args, **keywords)

    @property
    def needs_source(self) -> bool:
        """Whether it cannot be made without `source_images`."""
        return "source_images" in self.resources

    @property
    def names(self) -> tuple[str, ...]:
        """All hyper-parameters."""
        return (*(p.name for p in self._parameters()), *self.options)

    @property
    def required(self) -> set[str]:
        """Hyper-parameters without a default."""
        return {p.name for p in self._parameters() if p.default is p.empty}

    def hyperparameters(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The chosen hyper-parameters and the defaults of all others, JSON-ready."""
        if self.completed is not None:
            return self.completed(chosen)
        defaults = {p.name: p.default for p in self._parameters() if p.default is not p.empty}
        defaults |= dict.fromkeys(self.options)
        return json.loads(json.dumps(defaults | dict(chosen), default=repr))

    def _parameters(self) -> list[inspect.Parameter]:
        """Those of `make` after the model that have a name."""
        found = list(inspect.signature(self.make).parameters.values())[1:]
        return [p for p in found if p.kind is not p.VAR_KEYWORD and p.name != "accelerator"]


def _spear_config(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return SpearConfig.from_dict(dict(chosen)).to_dict()


def _learner(make: Callable[..., TTAMethod], *resources: str) -> MethodFactory:
    options = tuple(name for name in LearnerOptions.__annotations__ if name != "accelerator")
    return MethodFactory(make, ("accelerator", *resources), options)


METHODS: dict[str, Callable[..., TTAMethod]] = {
    "source": MethodFactory(Source, ("accelerator",)),
    "bn_adapt": MethodFactory(BnAdapt, ("accelerator",)),
    "tent": _learner(Tent),
    "eata": _learner(Eata, "source_images"),
    "eta": _learner(Eta),
    "sar": _learner(Sar),
    "deyo": _learner(Deyo),
    "roid": _learner(Roid, "mean", "std"),
    "cmf": _learner(Cmf, "mean", "std"),
    "buffer": _learner(Buffer),
    "cotta": _learner(Cotta, "mean", "std"),
    "rotta": _learner(Rotta, "mean", "std"),
    "spear": MethodFactory(spear, ("accelerator",), tuple(f.name for f in fields(SpearConfig)), _spear_config),
}
"""name -> what makes the method. Add a method of your own as a class, or as a MethodFactory if it takes resources."""
