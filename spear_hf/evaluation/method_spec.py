"""Contender: a method under its hyper-parameters, in words that a file can hold, and how it is put on a model."""

import difflib
import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spear_hf.baselines import METHODS, published
from spear_hf.baselines.published import BENCHMARKS
from spear_hf.config import STREAMING, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import get_spear_model

SPEAR = "spear"
AS_PUBLISHED = {"method": SPEAR, "alpha": 0.5, "diversity_batch": 1}
"""SPeaR with the paper's values where it names any, in place of defaults of our own."""

VARIANTS: dict[str, dict[str, Any]] = {
    "spear_paper": AS_PUBLISHED,
    "spear_stream": {"method": SPEAR} | STREAMING,
    "spear_views": {"method": SPEAR} | STREAMING | {"answer_views": 4},
}
"""Labels that are known without settings: the paper's SPeaR, `SpearConfig.streaming()`, and that with four views."""


@dataclass(frozen=True)
class MethodSpec:
    """A method under its hyper-parameters.

    Args:
        method: "spear", or a name in METHODS.
        settings: of "spear" fields of SpearConfig, of the others keyword arguments, JSON-ready; what is left out has
            its default. A "config" of another method is read as a SpearConfig, too.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in (known := (*METHODS, SPEAR)):
            near = difflib.get_close_matches(self.method, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "add your own method to METHODS"
            raise ConfigError(f"method={self.method!r} is not known; allowed are {', '.join(known)}; {hint}")

    @property
    def needs_source(self) -> bool:
        """Whether it wants `source_images` among its resources."""
        return bool(getattr(METHODS.get(self.method), "needs_source", False))

    def describe(self, resources: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The method, all of its hyper-parameters, defaults too, and the tensors it gets beyond them; JSON-ready."""
        given = _named(Spear if self.method == SPEAR else METHODS[self.method], resources)
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        seen = {name: {"shape": list(t.shape), "sum": float(t.double().sum())} for name, t in tensors.items()}
        return self._chosen() | ({"resources": seen} if seen else {})

    def _chosen(self) -> dict[str, Any]:
        if self.method == SPEAR:
            return {"method": self.method, "settings": SpearConfig.from_dict(dict(self.settings)).to_dict()}
        parameters = list(inspect.signature(METHODS[self.method]).parameters.values())[1:]
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty and p.name != "accelerator"}
        settings = json.loads(json.dumps(defaults | dict(self.settings), default=repr))
        return {"method": self.method, "settings": settings}

    def build(self, base: nn.Module, resources: Mapping[str, Any] | None = None) -> TTAMethod:
        """The method on `base`, which it takes to itself.

        Args:
            base: a copy that nobody else uses.
            resources: what is no hyper-parameter, by keyword: accelerator, `source_images`, the `mean` and `std` that
                images are normalised with. A method gets those that its signature names and `settings` does not.

        Raises:
            ConfigError: a hyper-parameter that does not exist or is not allowed.
            SpearError: the method cannot be put on this model.
        """
        settings = dict(self.settings)
        if self.method == SPEAR:
            model = get_spear_model(base, SpearConfig.from_dict(settings))
            return Spear(model, **_named(Spear, resources))
        if isinstance(settings.get("config"), Mapping):
            settings["config"] = SpearConfig.from_dict(dict(settings["config"]))
        make = METHODS[self.method]
        try:
            inspect.signature(make).bind(base, **settings)
        except TypeError as error:
            raise ConfigError(
                f"{self.method} does not take these hyper-parameters ({error}); "
                f"allowed are {', '.join(list(inspect.signature(make).parameters)[1:]) or 'none'}"
            ) from error
        return make(base, **(_named(make, resources) | settings))


def method_specs(
    names: str | Iterable[str] = "all", settings: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, MethodSpec]:
    """label -> Contender, in the order of the names.

    >>> list(method_specs("source,spear"))
    ['source', 'spear']

    Args:
        names: methods, VARIANTS, or labels in `settings`, with commas or several; "all" is every method, SPeaR last,
            and after it the labels in `settings` that name their method.
        settings: label -> hyper-parameters. Where the label is no method, "method" says which: several labels may so be
            of one, {"alpha 1": {"method": "spear", "alpha": 1.0}}.

    Raises:
        ConfigError: a name that is neither.
    """
    settings = settings or {}
    words = names.split(",") if isinstance(names, str) else list(names)
    labels = [word.strip() for word in words if word.strip()]
    if labels == ["all"]:
        labels = [*METHODS, SPEAR, *(label for label, values in settings.items() if "method" in values)]
    found = {}
    for label in dict.fromkeys(labels):
        values = dict(settings.get(label, VARIANTS.get(label, {})))
        found[label] = MethodSpec(values.pop("method", label), values)
    return found


def published_settings(benchmark: str) -> dict[str, dict[str, Any]]:
    """method -> its published hyper-parameters on a benchmark, for those methods of which they are known.

    Args:
        benchmark: "cifar10", "cifar100", "imagenet" or "imagenet_vit"; see `spear_hf.baselines.published`.

    Raises:
        ConfigError: an unknown benchmark.
    """
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"benchmark={benchmark!r} is not known; allowed are {', '.join(BENCHMARKS)}")
    found = {}
    for method in METHODS:
        with suppress(ConfigError):
            found[method] = published(method, benchmark)
    return found


def chosen_settings(benchmark: str | None, path: Path | None) -> dict[str, dict[str, Any]]:
    """label -> hyper-parameters: those of a JSON file before those published for a benchmark; either may be None.

    Raises:
        ConfigError: an unknown benchmark, or a file without an object of objects.
    """
    found = {} if benchmark is None else published_settings(benchmark)
    if path is None:
        return found
    try:
        return found | json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f'{path} holds no hyper-parameters by method ({error}); give {{"spear": {{"tau": 0.1}}}}'
        ) from error


def _named(make: Any, resources: Mapping[str, Any] | None) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters
    return {name: value for name, value in (resources or {}).items() if name in parameters}
