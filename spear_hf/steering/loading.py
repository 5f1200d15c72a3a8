"""A saved adapter, from a folder or the Hub, onto a model. Everything is checked before the model is changed.

The order: the configuration, the base, the boundaries, the header of the tensor file, and only then its tensors.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from spear_hf.adapters.adapter_config import AdapterConfig
from spear_hf.adapters.arithmetic import deviations
from spear_hf.adapters.download import Token, fetch
from spear_hf.adapters.names import check_name
from spear_hf.adapters.serialization import read_adapter
from spear_hf.backbones.head import Head
from spear_hf.backbones.zero_shot import ZeroShotClassifier, has_two_towers, model_inside
from spear_hf.boundaries import Boundary, find_boundaries, verify_boundaries
from spear_hf.errors import AdapterFormatError, AdapterLoadError, BaseModelMismatchError
from spear_hf.steering.hooks import refuse_unsteerable
from spear_hf.steering.logits_reader import Logits, LogitsReader, head_of
from spear_hf.steering.model import SpearModel

CheckBase = Literal["error", "warn", "off"]


@dataclass(frozen=True)
class LoadReport:
    """What was loaded.

    Args:
        adapter_name: the name it goes by in the model.
        modules: where its RSPs act.
        num_parameters: how many numbers it has.
        gamma_deviation, beta_deviation: ||gamma - 1|| and ||beta|| over all RSPs; both 0 for the identity.
    """

    adapter_name: str
    modules: tuple[str, ...]
    num_parameters: int
    gamma_deviation: float
    beta_deviation: float


def load_spear_model(
    model: nn.Module,
    source: str | Path,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    token: Token = None,
    adapter_name: str = "default",
    check_base: CheckBase = "error",
    inputs: Any = None,
    logits: Logits | None = None,
    processor: Any = None,
) -> SpearModel:
    """A SpearModel over `model`, steered by a saved adapter; labels and templates are those that were saved.

    Args:
        source, revision, subfolder, token: a folder or a Hub repo, as for `spear_hf.adapters.download.fetch`.
        check_base: what to do where `model` is not the base that the adapter was learned on. Channel counts are
            checked in any case.
        inputs: as in `get_spear_model`.
        logits: as in `get_spear_model`; needed again where it was a function, for no file may name code to run.
        processor: for a model of images and texts, as in `get_spear_model`.

    Raises:
        AdapterError, BoundaryError, and what `fetch` raises: nothing of `model` is changed.
    """
    folder = fetch(source, revision=revision, subfolder=subfolder, token=token)
    refuse_unsteerable(model)
    check_name(adapter_name)
    config, state = read_adapter(folder)
    reads = _logits_of(config, logits)
    base = _with_labels_of(config, model, processor)
    head = head_of(base, None if reads is None else LogitsReader(reads))
    boundaries = _boundaries_in(base, config, is_base_of(config, base, check_base, head), inputs)
    options: dict[str, Any] = {"boundaries": boundaries, "probe": False, "logits": reads}
    steered = SpearModel(base, config.spear_config, adapter_name=adapter_name, **options)
    steered.unwraps = base is not model
    steered.restore(state, adapter_name)
    _report(adapter_name, config, state)
    return steered


def load_adapter(
    model: SpearModel,
    source: str | Path,
    adapter_name: str,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    token: Token = None,
    overwrite: bool = False,
    check_base: CheckBase = "error",
) -> LoadReport:
    """Add a saved adapter to a model that is steered already; not active until `set_adapter`.

    Args:
        source, revision, subfolder, token: a folder or a Hub repo, as for `spear_hf.adapters.download.fetch`.
        overwrite: put its values into the adapter of this name, in place: compiled graphs and optimizers stay valid.

    Raises:
        AdapterError, and what `fetch` raises: nothing is changed.
    """
    folder = fetch(source, revision=revision, subfolder=subfolder, token=token)
    held = overwrite and adapter_name in model.peft_config
    if not held:
        check_name(adapter_name, model.peft_config)
    config, state = read_adapter(folder)
    with model.disable_adapter():
        is_base_of(config, model.base_model, check_base, model.head)
    _check_same_boundaries(model, config)
    if not held:
        model.add_adapter(adapter_name, config.spear_config)
        model.restore(state, adapter_name)
        return _report(adapter_name, config, state)
    others = [name for name in model.active_adapters if name != adapter_name]
    if adapter_name in model.active_adapters and any(
        model.peft_config[name].alpha != config.spear_config.alpha for name in others
    ):
        raise AdapterLoadError(
            f"the adapter has alpha={config.spear_config.alpha:g}, and {others}, composed with it, another; "
            f"set_adapter({adapter_name!r}) first"
        )
    model.restore(state, adapter_name)
    model.peft_config[adapter_name] = config.spear_config
    model.set_adapter(model.active_adapters)
    return _report(adapter_name, config, state)


def _logits_of(config: AdapterConfig, logits: Logits | None) -> Logits | None:
    """Where the logits are: as given, else as saved."""
    if logits is None and config.head.function is not None:
        raise AdapterLoadError(
            f"this adapter was learned on logits that the function {config.head.function!r} took from the model's "
            "output, and no file may name code to run; pass that function: logits="
        )
    return logits if logits is not None else config.head.path or None


def _with_labels_of(config: AdapterConfig, model: nn.Module, processor: Any) -> nn.Module:
    """The model, inside a ZeroShotClassifier of the saved labels where it is none yet."""
    if not config.head.labels or not has_two_towers(model) or isinstance(model, ZeroShotClassifier):
        return model
    return ZeroShotClassifier(model, config.head.labels, processor, config.head.templates)


def is_base_of(
    config: AdapterConfig, model: nn.Module, check_base: CheckBase = "error", head: Head | None = None
) -> bool:
    """Whether the adapter was learned on this very model; where it was not, raise, warn or keep quiet.

    Args:
        config: of the adapter.
        model: a base.
        check_base: what to do.
        head: how its logits come out; None is not compared.

    Raises:
        BaseModelMismatchError: with check_base="error".
    """
    if check_base not in ("error", "warn", "off"):
        raise AdapterFormatError(f'check_base={check_base!r} is not known; allowed are "error", "warn" and "off"')
    difference = (
        config.fingerprint.difference_from(model)
        or (head and config.head.difference(head))
        or config.fingerprint.behaviour_difference(model)
    )
    if difference is None:
        return True
    kind = type(model_inside(model)).__name__
    text = (
        f"this adapter was learned on {config.base_name}; the model given, {kind}, has {difference}; "
        'load the right base, or pass check_base="warn" to steer another on purpose'
    )
    if check_base == "error":
        raise BaseModelMismatchError(text)
    if check_base == "warn":
        warnings.warn(text, stacklevel=4)
    return False


def _boundaries_in(model: nn.Module, config: AdapterConfig, is_base: bool, inputs: Any) -> list[Boundary]:
    """The saved boundaries in this model: by module path, or, after renaming, by depth; channels must agree.

    On the very base of the adapter they were proved when it was made, so there is no forward for them; a tampered file
    still meets the RSP's own check of the channels. On any other model a probe proves them again.
    """
    modules = dict(model.named_modules())
    saved = list(config.boundaries)
    for spelled in (saved, *_with_timms_prefix(saved)):
        if all(boundary.module in modules for boundary in spelled):
            return spelled if is_base else verify_boundaries(model, spelled, inputs)
    own = config.spear_config
    found = find_boundaries(model, own.num_groups, stem=own.stem, inputs=inputs)
    if [(b.key, b.channels) for b in found] != [(b.key, b.channels) for b in saved]:
        raise BaseModelMismatchError(
            f"the adapter's boundaries have channels { {b.key: b.channels for b in saved} }, {type(model).__name__} "
            f"has { {b.key: b.channels for b in found} }; load the base that the adapter was learned on"
        )
    return found


def _with_timms_prefix(boundaries: list[Boundary]) -> list[list[Boundary]]:
    """The boundaries as transformers' wrapper around a timm model spells them, and the other way round."""
    return [
        [replace(b, module=f"timm_model.{b.module}") for b in boundaries],
        [replace(b, module=b.module.removeprefix("timm_model.")) for b in boundaries],
    ]


def _check_same_boundaries(model: SpearModel, config: AdapterConfig) -> None:
    """One model has one set of boundaries; an adapter of another set cannot join it."""
    here, saved = (
        [(b.key, b.channels, b.channel_axis) for b in some] for some in (model.boundaries, config.boundaries)
    )
    modules = [[b.module for b in some] for some in (model.boundaries, config.boundaries)]
    renamed = not set(modules[1]) <= {name for name, _ in model.base_model.named_modules()}
    if here != saved or (modules[0] != modules[1] and not renamed):
        raise AdapterLoadError(
            f"the adapter has boundaries {modules[1]}, this model {modules[0]} (num_groups or stem differ); "
            "steer another copy of the base by it: SpearModel.from_pretrained(base, ...)"
        )


def _report(name: str, config: AdapterConfig, state: Mapping[str, Tensor]) -> LoadReport:
    gamma, beta = deviations(state)
    if gamma == 0 and beta == 0:
        warnings.warn(f"adapter {name!r} is the identity: it was saved before it learned anything", stacklevel=4)
    numbers = sum(value.numel() for value in state.values())
    return LoadReport(name, tuple(b.module for b in config.chosen), numbers, gamma, beta)
