"""Load SPeaR adapters through PEFT: PeftModel.from_pretrained and transformers' from_pretrained, after `register()`.

    from spear_hf.integrations.peft import register
    register()
    model = PeftModel.from_pretrained(base, "me/resnet50-rsp-fog")

The logits are those of SpearModel. PEFT replaces the modules that it steers and cannot mix batch statistics, so an
adapter with alpha > 0 is refused on a base with batch norms.
"""

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from peft import PeftConfig, PeftType
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.peft_types import register_peft_method
from torch import Tensor, nn

from spear_hf.adapters.adapter_config import AdapterConfig, parse_config
from spear_hf.boundaries import Boundary
from spear_hf.boundaries.slots import pick, pick_input, replace, replace_input
from spear_hf.errors import AdapterFormatError, BaseModelMismatchError, MergeError
from spear_hf.steering.loading import is_base_of
from spear_hf.steering.mixing import batch_norms
from spear_hf.steering.rsp import check_channels, steer

OLDEST = Version("0.20")
_NAMES = ("spear_gamma", "spear_beta", "spear_in_gamma", "spear_in_beta")


def register() -> None:
    """Add the adapter type SPEAR to PEFT; a second call does nothing.

    >>> from peft import PeftType
    >>> from spear_hf.integrations.peft import register
    >>> register()
    >>> PeftType("SPEAR").value
    'SPEAR'

    Raises:
        AdapterFormatError: PEFT is older than 0.20; transformers would load an adapter through it without an effect
            and without an error.
    """
    found = Version(version("peft"))
    if found < OLDEST:
        raise AdapterFormatError(
            f"peft {found} is too old, {OLDEST} is the first that loads all of a SPeaR adapter (0.19 silently predicts "
            "as the base); pip install -U peft"
        )
    if "SPEAR" not in PeftType.__members__:
        _extend(PeftType, "SPEAR")
        register_peft_method(name="spear", config_cls=SpearPeftConfig, model_cls=SpearPeftModel)


def _extend(kind: type[enum.Enum], name: str) -> None:
    """Add a member to a string enum, through its private tables: PEFT lists its methods in an enum, which is closed."""
    member = str.__new__(kind, name)  # pyright: ignore[reportArgumentType, reportCallIssue]
    member._name_, member._value_ = name, name  # pyright: ignore[reportAttributeAccessIssue]
    kind._member_map_[name] = member  # pyright: ignore[reportArgumentType]
    kind._member_names_.append(name)
    kind._value2member_map_[name] = member  # pyright: ignore[reportArgumentType]
    type.__setattr__(kind, name, member)


@dataclass
class SpearPeftConfig(PeftConfig):
    """adapter_config.json as a PeftConfig, with the fields that `spear_hf.adapters.adapter_config` writes.

    >>> from spear_hf.integrations.peft import SpearPeftConfig, register
    >>> register()
    >>> SpearPeftConfig(base_model_class="ResNet").peft_type.value
    'SPEAR'
    """

    format_version: int = 1
    spear_version: str = "unknown"
    base_model_library: str = "torch"
    base_model_revision: str | None = None
    base_model_class: str = "the base"
    base_model_fingerprint: dict[str, Any] = field(default_factory=dict)
    boundaries: list[dict[str, Any]] = field(default_factory=list)
    spear_config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType["SPEAR"]

    def parsed(self) -> AdapterConfig:
        """The AdapterConfig, checked as strictly as one that is read from a file."""
        return parse_config({**asdict(self), "peft_type": "SPEAR"})

    @property
    def target_modules(self) -> list[str]:
        """The full paths of the modules that PEFT replaces."""
        return sorted({boundary.module for boundary in self.parsed().chosen})


class SpearLayer(nn.Module, BaseTunerLayer):
    """A module of the base whose input or output is steered; other attributes are those of the module.

    Args:
        base_layer: the module.
        boundaries: of the RSPs on it: at its input, at its output, or at both.
        device: of the parameters.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.integrations.peft import SpearLayer
    >>> stem = Boundary(depth=0, name="stem", module="conv1", channels=4)
    >>> layer = SpearLayer(torch.nn.Identity(), [stem], torch.device("cpu"))
    >>> layer.add("default", [stem], inference_mode=False)
    >>> layer(torch.ones(1, 4, 1, 1)).flatten().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    adapter_layer_names = _NAMES

    def __init__(self, base_layer: nn.Module, boundaries: Sequence[Boundary], device: torch.device) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.device = device
        self.into = next((b for b in boundaries if b.where == "in"), None)
        self.out = next((b for b in boundaries if b.where == "out"), None)
        for name in _NAMES:
            setattr(self, name, nn.ParameterDict())
        self.merged_adapters = []
        self.train(base_layer.training)

    def add(self, adapter_name: str, boundaries: Sequence[Boundary], *, inference_mode: bool) -> None:
        """Add the RSPs of one adapter, at the identity."""
        for boundary in boundaries:
            gamma, beta = self._parameters_of(boundary)
            gamma[adapter_name] = nn.Parameter(torch.ones(boundary.channels, device=self.device))
            beta[adapter_name] = nn.Parameter(torch.zeros(boundary.channels, device=self.device))
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module, steered by the active adapters."""
        if self.disable_adapters:
            return self.base_layer(*args, **kwargs)
        if self.into is not None:
            z = self._steered(self.into, pick_input(self.into, args, kwargs))
            args, kwargs = replace_input(self.into, args, kwargs, z)
        output = self.base_layer(*args, **kwargs)
        if self.out is None:
            return output
        return replace(output, self.out.output_slot, self._steered(self.out, pick(output, self.out.output_slot)))

    def _steered(self, boundary: Boundary, z: Tensor) -> Tensor:
        gamma, beta = self._parameters_of(boundary)
        for name in self.active_adapters:
            if name in gamma:
                check_channels(z, boundary.channels, boundary.channel_axis)
                z = steer(z, gamma[name].to(z.device), beta[name].to(z.device), boundary.channel_axis)
        return z

    def _parameters_of(self, boundary: Boundary) -> tuple[nn.ParameterDict, nn.ParameterDict]:
        where = "in_" if boundary.where == "in" else ""
        return getattr(self, f"spear_{where}gamma"), getattr(self, f"spear_{where}beta")

    def enable_adapters(self, enabled: bool) -> None:
        """Switch the adapters on or off; requires_grad stays as it is (PEFT's own method would unfreeze parameters)."""
        self._disable_adapters = not enabled

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Always raises MergeError."""
        raise MergeError("an RSP has no weight to be merged into; use unload() for the base, or keep the model")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_layer":
                raise
            return getattr(super().__getattr__("base_layer"), name)


class SpearPeftModel(BaseTuner):
    """The tuner: it replaces each module that an adapter steers by a SpearLayer.

    >>> import tempfile, timm
    >>> from peft import PeftModel
    >>> from spear_hf import SpearConfig, get_spear_model
    >>> from spear_hf.integrations.peft import register
    >>> register()
    >>> model = get_spear_model(timm.create_model("test_vit"), SpearConfig(alpha=0.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.save_pretrained(folder)
    ...     type(PeftModel.from_pretrained(model.unload(), folder).base_model).__name__
    'SpearPeftModel'
    """

    prefix = "spear_"
    tuner_layer_cls = SpearLayer

    def _prepare_model(self, peft_config: PeftConfig, model: nn.Module) -> None:
        assert isinstance(peft_config, SpearPeftConfig)
        config = peft_config.parsed()
        if any(boundary.part for boundary in config.boundaries):
            raise AdapterFormatError("PEFT cannot steer a boundary of several tensors; use SpearModel.from_pretrained")
        if config.head.to_dict():
            raise AdapterFormatError(
                f"this adapter says where logits come from ({', '.join(config.head.to_dict())}), and PEFT cannot: use "
                "SpearModel.from_pretrained"
            )
        if config.spear_config.alpha > 0 and any(True for _ in batch_norms(model)):
            raise AdapterFormatError(
                f"this adapter mixes batch statistics (alpha={config.spear_config.alpha:g}), which PEFT cannot do: "
                "predictions would differ; use SpearModel.from_pretrained, or learn an adapter with alpha=0"
            )
        others = [c for c in self.peft_config.values() if c is not peft_config and isinstance(c, SpearPeftConfig)]
        if not any(isinstance(module, SpearLayer) for module in model.modules()):
            is_base_of(config, model)
        elif any(other.base_model_fingerprint != peft_config.base_model_fingerprint for other in others):
            raise BaseModelMismatchError(
                "this adapter was learned on another base than the loaded ones; load it on a copy of its own base"
            )

    @staticmethod
    def _check_target_module_exists(peft_config: PeftConfig, key: str) -> bool:
        assert isinstance(peft_config, SpearPeftConfig)
        return key in peft_config.target_modules  # PEFT's own rule also matches longer paths that end in the key

    def _create_and_replace(
        self,
        peft_config: PeftConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        assert isinstance(peft_config, SpearPeftConfig)
        config = peft_config.parsed()
        chosen = [boundary for boundary in config.chosen if boundary.module == current_key]
        if not isinstance(target, SpearLayer):
            own = next(target.parameters(), None)
            device = own if own is not None else next(self.model.parameters())
            places = [boundary for boundary in config.boundaries if boundary.module == current_key]
            target = SpearLayer(target, places, device.device)
            setattr(parent, target_name, target)
        target.add(adapter_name, chosen, inference_mode=peft_config.inference_mode)

    def _replace_module(self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module) -> None:
        setattr(parent, child_name, new_module)
