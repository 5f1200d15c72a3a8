"""SpearModel: a frozen base, RSPs beside it, and PEFT's verbs to switch, share and undo them.

`get_spear_model` changes the base in place (it freezes it and registers hooks) and `unload` undoes that bit for bit.
Calling a SpearModel never learns; `Spear.step` does.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.batch_stats import AlphaMixing, batch_norms
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.config import SpearConfig
from spear_hf.errors import (
    AdapterNameError,
    AdapterNotFoundError,
    AlreadySteeredError,
    CompiledBaseError,
    ConfigError,
    LaunchError,
    MergeError,
)
from spear_hf.hooks import FireCheck, Site, Switch
from spear_hf.rsp import RSP

RESERVED_NAMES = ("base", "none", "source")


def get_spear_model(
    model: nn.Module,
    config: SpearConfig | None = None,
    *,
    adapter_name: str = "default",
    boundaries: Sequence[Boundary] | None = None,
    inputs: Any = None,
) -> "SpearModel":
    """A SpearModel over `model`, which is frozen and steered in place; with identity RSPs its logits stay bit-identical.

    With alpha > 0 and BatchNorm layers, batch statistics are mixed in from the first forward on, as Eq. 10 asks.

    Args:
        model: any image classifier: transformers, timm, torchvision or your own nn.Module.
        config: what to steer and how to learn; the default is SpearConfig().
        adapter_name: the name of the first adapter, active at once.
        boundaries: where z_0..z_L are, if they are known better than `find_boundaries` finds them; verified all the same.
        inputs: an example input (tensor, or dict of keyword arguments) for the probe, where none can be made up.

    Raises:
        NoBoundariesError, BoundaryNotFoundError, AlreadySteeredError, CompiledBaseError, LaunchError: nothing is changed.
    """
    return SpearModel(model, config or SpearConfig(), adapter_name=adapter_name, boundaries=boundaries, inputs=inputs)


class SpearModel(nn.Module):
    """A frozen base model with named adapters of RSPs; attributes it lacks are looked up on the base.

    Args: as `get_spear_model`.

    Attributes:
        base_model: the model that was handed in, steered by hooks; its state_dict keys are what they were.
        boundaries: every stage boundary of the base, z_0..z_L.
        adapters: name -> boundary key -> RSP.
        peft_config: name -> SpearConfig.
    """

    base_model: nn.Module
    adapters: nn.ModuleDict

    def __init__(
        self,
        base: nn.Module,
        config: SpearConfig,
        *,
        adapter_name: str = "default",
        boundaries: Sequence[Boundary] | None = None,
        inputs: Any = None,
    ) -> None:
        super().__init__()
        _refuse_unsteerable(base)
        _check_name(adapter_name, ())
        if boundaries is None:
            found = find_boundaries(base, config.num_groups, stem=config.stem, inputs=inputs)
        else:
            found = verify_boundaries(base, list(boundaries), inputs)
        chosen = select_boundaries(found, config.boundaries)  # refused, if at all, before anything is changed

        self.base_model = base
        self.boundaries = found
        self.adapters = nn.ModuleDict()
        self.peft_config: dict[str, SpearConfig] = {}
        self._switch = Switch()
        self._sites = [Site(b, self.adapters, self._switch) for b in found]
        self._mixing = {name: AlphaMixing(self._switch) for name, _ in batch_norms(base)}
        self._requires_grad = {name: p.requires_grad for name, p in base.named_parameters()}
        self._training = {name: m.training for name, m in base.named_modules()}
        base.requires_grad_(False)
        base.eval()
        self._handles = self._register_hooks()
        self._add(adapter_name, config, chosen)
        self.set_adapter(adapter_name)
        self.training = False

    # --- attaching and undoing -----------------------------------------------------------------------------------

    def _register_hooks(self) -> list[Any]:
        base = self.base_model
        handles = []
        for site in self._sites:
            module = base.get_submodule(site.boundary.module)
            if site.boundary.where == "in":
                handles.append(module.register_forward_pre_hook(site.before, prepend=True, with_kwargs=True))
            else:  # before any hook that records hidden states, so that they show the steered tensor
                handles.append(module.register_forward_hook(site.after, prepend=True))
        handles += [base.get_submodule(name).register_forward_pre_hook(hook) for name, hook in self._mixing.items()]
        self._check = FireCheck(base, self._sites, self._switch)
        handles.append(base.register_forward_pre_hook(self._check.begin, prepend=True))
        handles.append(base.register_forward_hook(self._check.end))
        return handles

    def unload(self) -> nn.Module:
        """The base exactly as it came in: hooks gone, requires_grad and training flags restored; adapters are kept here."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for name, parameter in self.base_model.named_parameters():
            parameter.requires_grad_(self._requires_grad.get(name, True))
        for name, module in self.base_model.named_modules():
            module.training = self._training.get(name, module.training)
        return self.base_model

    def get_base_model(self) -> nn.Module:
        """The base, still steered by the active adapter; `unload` gives it back as it was."""
        return self.base_model

    def merge_and_unload(self) -> nn.Module:
        """Always raises MergeError."""
        raise MergeError(
            "an RSP cannot be merged: a stage's output is also read by skip connections and zero-padded convolutions, "
            "where a scale and shift have no weight to go into; use unload() for the base, or keep the SpearModel"
        )

    merge_adapter = merge_and_unload

    # --- calling -------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the base returns for these arguments, steered by the active adapter; never learns."""
        if not self._handles:
            raise RuntimeError("this SpearModel was unloaded; call get_spear_model(base) to steer the base again")
        return self.base_model(*args, **kwargs)

    def train(self, mode: bool = True) -> "SpearModel":
        """Sets only this flag: the frozen base stays in evaluation mode, so nothing random or running ever moves."""
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_model" or name.startswith("__"):
                raise
            return getattr(self.base_model, name)

    # --- adapters ------------------------------------------------------------------------------------------------

    def add_adapter(self, adapter_name: str, config: SpearConfig | None = None) -> None:
        """A further adapter at the identity; not active until `set_adapter`.

        Raises:
            AdapterNameError, BoundaryNotFoundError, ConfigError: nothing is changed.
        """
        config = config or SpearConfig()
        _check_name(adapter_name, self.peft_config)
        if config.num_groups != self._grouping()[0] or config.stem != self._grouping()[1]:
            raise ConfigError(
                f"num_groups={config.num_groups}, stem={config.stem!r} differ from the adapters here "
                f"({self._grouping()[0]}, {self._grouping()[1]!r}), which share the boundaries of one model; "
                "use the same, or unload() and call get_spear_model again"
            )
        self._add(adapter_name, config, select_boundaries(self.boundaries, config.boundaries))

    def _grouping(self) -> tuple[int | None, str]:
        first = next(iter(self.peft_config.values()))
        return first.num_groups, first.stem

    def _add(self, name: str, config: SpearConfig, chosen: list[Boundary]) -> None:
        device = next((p.device for p in self.base_model.parameters()), torch.device("cpu"))
        rsps = {b.key: RSP(b.channels, b.channel_axis).to(device) for b in chosen}
        self.adapters[name] = nn.ModuleDict(rsps)
        self.peft_config[name] = copy.deepcopy(config)

    def set_adapter(self, adapter_name: str | Sequence[str] | None) -> None:
        """Steer by this adapter from now on; by several, one after the other at each boundary; or, with None, not at all.

        Raises:
            AdapterNotFoundError, ConfigError: the active adapter stays what it was.
        """
        names = (adapter_name,) if isinstance(adapter_name, str) else tuple(adapter_name or ())
        for name in names:
            self._require(name)
        alphas = {self.peft_config[name].alpha for name in names}
        if len(alphas) > 1:
            raise ConfigError(f"adapters {names} have different alpha {sorted(alphas)}; only equal ones can be composed")
        self._switch.active = names
        self._switch.alpha = alphas.pop() if alphas else 0.0

    def delete_adapter(self, adapter_name: str) -> None:
        """Forget an adapter. Where it was active, no other takes its place: the model answers as the source."""
        self._require(adapter_name)
        if adapter_name in self._switch.active:
            self.set_adapter([name for name in self._switch.active if name != adapter_name])
        del self.adapters[adapter_name]
        del self.peft_config[adapter_name]

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Inside, the model is the source: no RSP and no alpha-mixing. Nests, and touches no requires_grad flag."""
        self._switch.off += 1
        try:
            yield
        finally:
            self._switch.off -= 1

    @property
    def active_adapters(self) -> list[str]:
        """The names of the adapters that steer, in the order in which they are composed."""
        return list(self._switch.active)

    @property
    def active_adapter(self) -> str | None:
        """The adapter that steers, or None; where several are composed, `active_adapters` lists them."""
        return self._switch.active[0] if self._switch.active else None

    @property
    def is_disabled(self) -> bool:
        """Whether a `disable_adapter()` context is open."""
        return self._switch.off > 0

    @property
    def single_value_norms(self) -> int:
        """How many batch-norm calls had one value a channel, and were answered with the source's statistics."""
        return sum(hook.used_source for hook in self._mixing.values())

    def _require(self, name: str) -> nn.ModuleDict:
        if name not in self.peft_config:
            raise AdapterNotFoundError(f"no adapter {name!r} here; there are {sorted(self.peft_config)}; add_adapter makes one")
        adapter = self.adapters[name]
        assert isinstance(adapter, nn.ModuleDict)
        return adapter

    # --- parameters ----------------------------------------------------------------------------------------------

    def rsps(self, adapter_name: str | None = None) -> dict[int, list[RSP]]:
        """depth -> its RSPs (several where a boundary is several tensors), of the active adapter unless one is named."""
        name = adapter_name or self.active_adapter
        adapter = self._require(name) if name is not None else nn.ModuleDict()
        by_depth: dict[int, list[RSP]] = {}
        for boundary in self.boundaries:
            if boundary.key in adapter:
                rsp = adapter[boundary.key]
                assert isinstance(rsp, RSP)
                by_depth.setdefault(boundary.depth, []).append(rsp)
        return by_depth

    def adapter_parameters(self, adapter_name: str | None = None) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP of one adapter (the active one by default), by depth."""
        for several in self.rsps(adapter_name).values():
            for rsp in several:
                yield from rsp.parameters()

    @torch.no_grad()
    def reset_adapter(self, adapter_name: str | None = None) -> None:
        """Back to the identity, in place."""
        for several in self.rsps(adapter_name).values():
            for rsp in several:
                rsp.reset_parameters()

    def snapshot(self, adapter_name: str | None = None) -> dict[str, Tensor]:
        """A copy of one adapter's state, for `restore`."""
        name = adapter_name or self.active_adapter
        state = self._require(name).state_dict() if name is not None else {}
        return {key: value.detach().clone() for key, value in state.items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor], adapter_name: str | None = None) -> None:
        """Put a snapshot back, in place; its keys must be this adapter's."""
        name = adapter_name or self.active_adapter
        own = self._require(name).state_dict() if name is not None else {}
        if own.keys() != state.keys():
            raise AdapterNotFoundError(f"a snapshot of {sorted(state)} does not fit adapter {name!r}, which has {sorted(own)}")
        for key, value in state.items():
            own[key].copy_(value)

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """(parameters of the active adapter, parameters of base and active adapter)."""
        trainable = sum(p.numel() for p in self.adapter_parameters())
        return trainable, trainable + sum(p.numel() for p in self.base_model.parameters())

    def print_trainable_parameters(self) -> None:
        """Prints `trainable params: 128 || all params: 25,557,160 || trainable%: 0.0005`."""
        trainable, total = self.get_nb_trainable_parameters()
        print(f"trainable params: {trainable:,d} || all params: {total:,d} || trainable%: {100 * trainable / total:.4f}")

    # --- files: thin doors to the rooms above, imported when they are opened ---------------------------------------

    def save_pretrained(self, folder: str | Path, adapter_name: str | None = None) -> Path:
        """Write adapter_config.json, adapter_model.safetensors and README.md; see `spear_hf.state.save_adapter`."""
        from spear_hf.state import save_adapter

        return save_adapter(self, folder, adapter_name=adapter_name)

    @classmethod
    def from_pretrained(cls, model: nn.Module, folder: str | Path, **options: Any) -> "SpearModel":
        """The base steered by a saved adapter, loaded strictly; see `spear_hf.state.load_spear_model`."""
        from spear_hf.state import load_spear_model

        return load_spear_model(model, folder, **options)


def _refuse_unsteerable(base: nn.Module) -> None:
    """Raise where hooks would be skipped, doubled or lost."""
    if isinstance(base, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise LaunchError(
            f"{type(base).__name__} is not steered itself; pass model.module: Spear keeps the processes in step by its own"
        )
    if isinstance(base, torch.jit.ScriptModule):
        raise CompiledBaseError("a scripted model skips hooks; steer the nn.Module it was made from")
    if hasattr(base, "_orig_mod") or any(m._compiled_call_impl is not None for m in base.modules()):
        raise CompiledBaseError(
            "this model is already compiled, and compiled code skips hooks that come later; call "
            "get_spear_model(model) first and torch.compile the SpearModel"
        )
    if any(isinstance(getattr(h, "__self__", None), FireCheck) for h in base._forward_hooks.values()):
        raise AlreadySteeredError("this model is steered already; use its SpearModel.add_adapter, or unload() it first")


def _check_name(name: object, taken: Any) -> None:
    """Raise AdapterNameError for a name that could not be a folder, a key and a state_dict prefix."""
    if not isinstance(name, str) or not name or any(c in name for c in "./\\") or name in RESERVED_NAMES:
        raise AdapterNameError(
            f"adapter_name={name!r} is not allowed: not empty, no dot or slash, not one of {RESERVED_NAMES}; "
            'try "fog-5" rather than "fog.5"'
        )
    if name in taken:
        raise AdapterNameError(f"adapter {name!r} exists already; delete_adapter({name!r}) first, or take another name")
