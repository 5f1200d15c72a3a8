"""MethodSpec: a method with its hyper-parameters, as a JSON file can hold it, and how it is put on a model."""

import difflib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spear_hf.baselines import METHODS, MethodFactory
from spear_hf.baselines.published import BENCHMARKS, published_rows
from spear_hf.config import PAPER, SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.learning.method import TTAMethod

AS_PUBLISHED = {"method": "spear"} | PAPER
"""`SpearConfig.paper()`."""

VARIANTS: dict[str, dict[str, Any]] = {
    "spear_paper": AS_PUBLISHED,
    "spear_views": {"method": "spear", "tta_views": 4},
}
"""Labels that are known without settings: `SpearConfig.paper()`, and the default with four views."""


@dataclass(frozen=True)
class MethodSpec:
    """A method with its hyper-parameters.

    Args:
        method: a name in METHODS.
        settings: its hyper-parameters by keyword, JSON-ready; what is left out has its default. A "config" that is a
            dictionary is read as a SpearConfig.
        up_to_batch: batch size -> the hyper-parameters that differ for batches up to this size.

    Raises:
        ConfigError: a method that is not in METHODS.

    >>> import timm
    >>> from spear_hf.evaluation.method_spec import MethodSpec
    >>> tent = MethodSpec("tent", {"learning_rate": 0.01}).build(timm.create_model("test_resnet"))
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    up_to_batch: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            near = difflib.get_close_matches(self.method, METHODS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "add your own method to METHODS"
            raise ConfigError(f"method={self.method!r} is not known; allowed are {', '.join(METHODS)}; {hint}")

    @property
    def factory(self) -> MethodFactory:
        """The row of METHODS."""
        found = METHODS[self.method]
        return found if isinstance(found, MethodFactory) else MethodFactory(found)

    @property
    def needs_source(self) -> bool:
        """Whether it needs `source_images` among its resources."""
        return self.factory.needs_source

    def at(self, batch_size: int) -> "MethodSpec":
        """The method with its hyper-parameters for batches of this size.

        >>> from spear_hf.evaluation.method_spec import MethodSpec
        >>> MethodSpec("buffer", {"alpha": 1e-4}, {4: {"alpha": 1e-5}}).at(2).settings
        {'alpha': 1e-05}
        """
        sizes = [size for size in self.up_to_batch if batch_size <= size]
        changed = dict(self.up_to_batch[min(sizes)]) if sizes else {}
        return replace(self, settings=dict(self.settings) | changed, up_to_batch={})

    def describe(self, resources: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The method, all of its hyper-parameters with defaults, and the tensors among its resources; JSON-ready."""
        given = self._resources(resources)
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        seen = {name: {"shape": list(t.shape), "sum": float(t.double().sum())} for name, t in tensors.items()}
        chosen = {"method": self.method, "settings": self.factory.hyperparameters(self.settings)}
        small = {str(size): dict(changed) for size, changed in self.up_to_batch.items()}
        return chosen | ({"up_to_batch": small} if small else {}) | ({"resources": seen} if seen else {})

    def build(self, base: nn.Module, resources: Mapping[str, Any] | None = None) -> TTAMethod:
        """The method on `base`, which it changes in place.

        Args:
            base: a copy that nobody else uses.
            resources: "accelerator", "source_images", and the "mean" and "std" that images are normalised with. A
                method gets those that its row of METHODS declares, unless `settings` has them.

        Raises:
            ConfigError: a hyper-parameter that does not exist, is missing or is not allowed.
            SpearError: the method cannot be put on this model.
        """
        factory, settings = self.factory, dict(self.settings)
        factory.hyperparameters(settings)  # SPeaR's raises for a wrong field or value, and names the nearest field
        unknown = sorted(settings.keys() - set(factory.names))
        missing = sorted(factory.required - settings.keys())
        if unknown or missing:
            wrong = ", ".join(
                [*(f"{name!r} is unknown" for name in unknown), *(f"{name!r} is missing" for name in missing)]
            )
            raise ConfigError(
                f"{self.method} does not take these hyper-parameters ({wrong}); "
                f"allowed are {', '.join(factory.names) or 'none'}"
            )
        if isinstance(settings.get("config"), Mapping):
            settings["config"] = SpearConfig.from_dict(dict(settings["config"]))
        return factory(base, **(self._resources(resources) | settings))

    def _resources(self, resources: Mapping[str, Any] | None) -> dict[str, Any]:
        return {name: value for name, value in (resources or {}).items() if name in self.factory.resources}


def method_specs(
    names: str | Iterable[str] = "all", settings: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, MethodSpec]:
    """label -> MethodSpec, in the order of the names.

    >>> from spear_hf.evaluation.method_spec import method_specs
    >>> list(method_specs("source,spear"))
    ['source', 'spear']

    Args:
        names: methods, VARIANTS, or labels in `settings`, as a list or separated by commas; "all" is every method, and
            then the labels in `settings` that name their method.
        settings: label -> hyper-parameters. "method" names the method of a label that is none itself, so that several
            labels can have one method: {"alpha 1": {"method": "spear", "alpha": 1.0}}. "up_to_batch" holds what
            differs for small batches: {"buffer": {"alpha": 1e-4, "up_to_batch": {"4": {"alpha": 1e-5}}}}.

    Raises:
        ConfigError: a name that is neither.
    """
    settings = settings or {}
    words = names.split(",") if isinstance(names, str) else list(names)
    labels = [word.strip() for word in words if word.strip()]
    if labels == ["all"]:
        labels = [*METHODS, *(label for label, values in settings.items() if "method" in values)]
    found = {}
    for label in dict.fromkeys(labels):
        values = dict(settings.get(label, VARIANTS.get(label, {})))
        method, small = values.pop("method", label), values.pop("up_to_batch", {})
        found[label] = MethodSpec(method, values, {int(size): changed for size, changed in small.items()})
    return found


def published_settings(benchmark: str) -> dict[str, dict[str, Any]]:
    """method -> its published hyper-parameters on a benchmark, for the methods of which they are known.

    What differs for small batches is under "up_to_batch".

    Args:
        benchmark: "cifar10", "cifar100", "imagenet", "imagenet_gn" or "imagenet_vit"; see
            `spear_hf.baselines.published`.

    Raises:
        ConfigError: an unknown benchmark.

    >>> from spear_hf.evaluation.method_spec import published_settings
    >>> published_settings("imagenet")["tent"]
    {'optimizer': 'sgd', 'learning_rate': 0.00025, 'nesterov': True}
    """
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"benchmark={benchmark!r} is not known; allowed are {', '.join(BENCHMARKS)}")
    found = {}
    for method in METHODS:
        with suppress(ConfigError):
            row = published_rows(method, benchmark)[0]
            found[method] = dict(row.settings) | ({"up_to_batch": dict(row.up_to_batch)} if row.up_to_batch else {})
    return found


def chosen_settings(benchmark: str | None, path: Path | None) -> dict[str, dict[str, Any]]:
    """label -> hyper-parameters: of a JSON file, or else as published for a benchmark; either may be None.

    Raises:
        ConfigError: an unknown benchmark, or a file without an object of objects.

    >>> from spear_hf.evaluation.method_spec import chosen_settings
    >>> chosen_settings("cifar10", None)["roid"]
    {'optimizer': 'adam', 'learning_rate': 0.001, 'prior': 'logits'}
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
