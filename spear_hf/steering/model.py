"""SpearModel: a frozen base, RSPs beside it, and PEFT's verbs to switch, share and undo them.

`get_spear_model` changes the base in place (it freezes it and registers hooks) and `unload` undoes that bit for bit.
Calling a SpearModel never learns; `Spear.step` does.
"""

import copy
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spear_hf.adapters.arithmetic import check_weights, weighted_state
from spear_hf.adapters.names import check_name
from spear_hf.backbones.head import Head
from spear_hf.backbones.zero_shot import ZeroShotClassifier, as_classifier, model_inside
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.boundaries.probe_forward import device_of
from spear_hf.config import SpearConfig
from spear_hf.errors import AdapterNotFoundError, AdapterSaveError, ConfigError, InputError, MergeError
from spear_hf.steering.classifier import refuse_no_classifier
from spear_hf.steering.context import VALUES, AdapterChoice, Pair, Steering, SteeringContext
from spear_hf.steering.hooks import Attachment, refuse_unsteerable
from spear_hf.steering.interop import forward_like, make_known_to_pipelines, takes_labels
from spear_hf.steering.logits_reader import Logits, LogitsReader, head_of
from spear_hf.steering.mixing import batch_norms, scripted_batch_norms
from spear_hf.steering.rsp import RSP, Adapters
from spear_hf.utils.distributed import BatchShard

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

    from spear_hf.adapters.adapter_config import AdapterConfig
    from spear_hf.adapters.card_metrics import CardMetrics
    from spear_hf.backbones.origin import Origin
    from spear_hf.steering.loading import LoadReport
    from spear_hf.steering.status import ModelStatus


def get_spear_model(
    model: nn.Module,
    config: SpearConfig | None = None,
    *,
    adapter_name: str = "default",
    boundaries: Sequence[Boundary] | None = None,
    inputs: Any = None,
    logits: Logits | None = None,
    labels: Sequence[str] | None = None,
    templates: Sequence[str] | str | None = None,
    processor: Any = None,
) -> "SpearModel":
    """A SpearModel over `model`, frozen and steered in place; with identity RSPs its logits stay bit-identical.

    With alpha > 0 and BatchNorm layers, batch statistics are mixed in from the first forward on, as Eq. 10 asks.

    Args:
        model: any image classifier: transformers, timm, torchvision or your own nn.Module.
        config: what to steer and how to learn; the default is SpearConfig().
        adapter_name: the name of the first adapter, active at once.
        boundaries: where z_0..z_L are, if you know better than `find_boundaries`; verified all the same.
        inputs: an example input (tensor, or dict of keyword arguments) for the probe, where none can be made up.
        logits: where the logits are in what the model returns, if that is neither a tensor nor has `.logits`: a key,
            an attribute or a place ("main", 0), several of them, or a function. The steered model returns them alone.
        labels: the classes, for a model of images and texts (CLIPModel, SiglipModel): see `ZeroShotClassifier`.
        templates, processor: of that classifier.

    Raises:
        NoBoundariesError, BoundaryNotFoundError, AlreadySteeredError, CompiledBaseError, LaunchError, ConfigError,
            InputError: nothing is changed.
    """
    base = as_classifier(model, labels, processor, templates)
    options: dict[str, Any] = {"boundaries": boundaries, "inputs": inputs, "logits": logits}
    steered = SpearModel(base, config or SpearConfig(), adapter_name=adapter_name, **options)
    steered.unwraps = base is not model
    return steered


class SpearModel(nn.Module):
    """A frozen base model with named adapters of RSPs; attributes it lacks are looked up on the base.

    Args:
        base, config, adapter_name, boundaries, inputs, logits: as for `get_spear_model`.
        probe: False takes `boundaries` as they are, where an earlier probe of this very base has proved them.

    Attributes:
        base_model: the model that was handed in, steered by hooks; its state_dict keys are what they were.
        boundaries: every stage boundary of the base, z_0..z_L.
        has_batch_norms: whether alpha > 0 changes anything here.
        adapters: name -> boundary key -> RSP.
        peft_config: name -> SpearConfig.
        unwraps: whether `unload` takes the base out of a ZeroShotClassifier that it was put into here.

    A model holds no state of a call or a stream: any number of threads may call it, and step a learner on it meanwhile.

    >>> import timm
    >>> import torch
    >>> model = SpearModel(timm.create_model("test_resnet"), SpearConfig())
    >>> tuple(model(torch.zeros(2, 3, 32, 32)).shape)
    (2, 1000)
    """

    base_model: nn.Module
    adapters: Adapters
    unwraps = False

    def __init__(
        self,
        base: nn.Module,
        config: SpearConfig,
        *,
        adapter_name: str = "default",
        boundaries: Sequence[Boundary] | None = None,
        inputs: Any = None,
        probe: bool = True,
        logits: Logits | None = None,
    ) -> None:
        super().__init__()
        refuse_unsteerable(base)
        refuse_no_classifier(base)
        check_name(adapter_name)
        reader = None if logits is None else LogitsReader(logits)
        with nullcontext() if reader is None else reader.attached(base):  # boundaries are proved for these logits
            if boundaries is None:
                found = find_boundaries(base, config.num_groups, stem=config.stem, inputs=inputs)
            else:
                found = verify_boundaries(base, list(boundaries), inputs) if probe else list(boundaries)
            chosen = select_boundaries(found, config.boundaries)  # refused, if at all, before anything is changed

        self.base_model = base
        self._reader = reader
        self.boundaries = found
        self.adapters = Adapters()
        self.peft_config: dict[str, SpearConfig] = {}
        self._grouping = (config.num_groups, config.stem)
        self._steering = Steering()
        self.has_batch_norms = any(True for _ in batch_norms(base))
        if config.alpha > 0 and (scripted := scripted_batch_norms(base)):
            warnings.warn(
                f"{len(scripted)} BatchNorm layers ({scripted[0]}, ...) are scripted, so alpha={config.alpha:g} mixes "
                "no batch statistics into them; steer the model before torch.jit.script, or choose alpha=0",
                stacklevel=3,
            )
        self._attachment = Attachment(base, found, self._steering)
        self._add(adapter_name, config, chosen)
        self.set_adapter(adapter_name)
        self.training = False
        self._show_as_classifier()

    # --- attaching and undoing -----------------------------------------------------------------------------------

    def unload(self) -> nn.Module:
        """The base exactly as it came in: hooks gone, requires_grad and training flags restored; adapters stay here."""
        base = self._attachment.undo()
        if self._reader is not None:
            self._reader.undo()
        return base.two_tower if self.unwraps and isinstance(base, ZeroShotClassifier) else base

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

    def forward(
        self,
        pixel_values: Any = None,
        *args: Any,
        labels: Any = None,
        adapter_names: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> Any:
        """What the base returns for these arguments, steered by the active adapter; never learns.

        Args:
            pixel_values: (B, C, H, W), the base's first argument, whatever it calls it.
            args, kwargs: further arguments of the base.
            labels: given to the base where it takes labels, as transformers' classifiers do for a loss.
            adapter_names: one name for each image of the batch, in place of the active adapter; None (or PEFT's
                "__base__") leaves that image to the source.

        Raises:
            AdapterNotFoundError, ConfigError, InputError: names that are not here, that mix statistics differently, or
                that are not as many as there are images.
        """
        if not self._attachment.is_attached:
            raise RuntimeError("this SpearModel was unloaded; call get_spear_model(base) to steer the base again")
        if pixel_values is not None:
            args = (pixel_values, *args)
        if labels is not None:
            if not self._takes_labels:
                raise InputError(
                    f"labels were given, and {type(self.base_model).__name__} takes none; leave them out, or let "
                    "SpearTrainer take the loss"
                )
            kwargs["labels"] = labels
        if adapter_names is None:
            return self.base_model(*args, **kwargs)
        with self._steering.within(context=self._context_by_rows(adapter_names)):
            return self.base_model(*args, **kwargs)

    def _context_by_rows(self, adapter_names: Sequence[str | None]) -> SteeringContext:
        """What acts where each image of a batch has an adapter of its own."""
        rows = [None if name == "__base__" else name for name in adapter_names]
        names = tuple(dict.fromkeys(name for name in rows if name is not None))
        alpha = self._common("alpha", names)
        if alpha > 0 and None in rows and self.has_batch_norms:
            raise ConfigError(
                f"adapters {names} have alpha={alpha:g}, which mixes the statistics of the whole batch, so no image of "
                "it can be left to the source; give those a batch of their own, inside disable_adapter()"
            )
        pairs = {}
        with nullcontext() if torch.compiler.is_compiling() else VALUES:  # a compiled graph cannot take a lock
            for boundary in self.boundaries:
                rsps = {name: rsp for name in names if (rsp := self.adapters.rsp(name, boundary.key)) is not None}
                if rsps:
                    pairs[boundary.key] = (_stacked([None if name is None else rsps.get(name) for name in rows]),)
        return SteeringContext(pairs, alpha)

    def _show_as_classifier(self) -> None:
        """What other libraries look at: the base's signature, and a name that pipelines know."""
        self.forward = forward_like(self, self.base_model)
        self._takes_labels = takes_labels(self.base_model)
        make_known_to_pipelines(type(self).__name__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._show_as_classifier()

    def _replicate_for_data_parallel(self) -> "SpearModel":
        replica = super()._replicate_for_data_parallel()  # pyright: ignore[reportAttributeAccessIssue]
        del replica.forward  # it is bound to this model, on its device
        return replica

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

    def sharding(self, shard: BatchShard | None) -> AbstractContextManager[None]:
        """Inside, for this thread, batch statistics are those of the global batch that this process has a slice of."""
        return self._steering.within(shard=shard)

    def steering(self, context: SteeringContext) -> AbstractContextManager[None]:
        """Inside, for this thread, calls are steered by exactly this context: the values of a stream, say."""
        return self._steering.within(context=context)

    def current_context(self) -> SteeringContext:
        """What steers a call of this thread now, with copies of the values."""
        return self._steering.context(copied=True)

    def lending(self, context: SteeringContext) -> AbstractContextManager[None]:
        """Inside, what gradient checkpointing runs again in a thread of autograd is steered by this context."""
        return self._steering.lending(context)

    # --- adapters ------------------------------------------------------------------------------------------------

    def add_adapter(self, adapter_name: str, config: SpearConfig | None = None) -> None:
        """A further adapter at the identity; not active until `set_adapter`.

        Raises:
            AdapterNameError, BoundaryNotFoundError, ConfigError: nothing is changed.
        """
        num_groups, stem = self._grouping
        config = config or SpearConfig(num_groups=num_groups, stem=stem)
        check_name(adapter_name, self.peft_config)
        if (config.num_groups, config.stem) != self._grouping:
            raise ConfigError(
                f"num_groups={config.num_groups}, stem={config.stem!r} differ from the adapters here "
                f"({num_groups}, {stem!r}), which share the boundaries of one model; "
                "use the same, or unload() and call get_spear_model again"
            )
        self._add(adapter_name, config, select_boundaries(self.boundaries, config.boundaries))

    def _add(self, name: str, config: SpearConfig, chosen: list[Boundary]) -> None:
        self.adapters.add(name, chosen, device_of(self.base_model))
        self.peft_config[name] = copy.deepcopy(config)

    def set_adapter(self, adapter_name: str | Sequence[str] | None) -> None:
        """Steer by this adapter from now on; by several, one after the other at each boundary; or by none (None).

        Every thread sees the choice, but for those inside a `use_adapter` of their own; a call that runs keeps the
        adapters that it began with.

        Raises:
            AdapterNotFoundError, ConfigError: the active adapter stays what it was.
        """
        self._steering.choose(self._choice(adapter_name))

    @contextmanager
    def use_adapter(self, adapter_name: str | Sequence[str] | None) -> Iterator[None]:
        """Inside, this thread is steered by these adapters, whatever the others see; None is the source.

        Inside, `set_adapter` is this thread's too, and ends with the `with`.

        Raises:
            AdapterNotFoundError, ConfigError: as for `set_adapter`.
        """
        with self._steering.within(choice=self._choice(adapter_name)):
            yield

    def _choice(self, adapter_name: str | Sequence[str] | None) -> AdapterChoice:
        names = (adapter_name,) if isinstance(adapter_name, str) else tuple(adapter_name or ())
        alpha = self._common("alpha", names)
        self._common("memory_images", names)
        rsps = {boundary.key: self.adapters.composed(names, boundary.key) for boundary in self.boundaries}
        return AdapterChoice(names, alpha, {key: several for key, several in rsps.items() if several})

    def delete_adapter(self, adapter_name: str) -> None:
        """Forget an adapter. Where it was active, no other takes its place: the model answers as the source.

        A thread inside a `use_adapter` of it is steered by it until that `with` ends.
        """
        self.adapters.of(adapter_name)
        for names, choose in (
            (self._steering.default.names, self._steering.choose_for_all),
            (self._steering.choice.names, self._steering.choose),
        ):
            if adapter_name in names:
                choose(self._choice([name for name in names if name != adapter_name]))
        del self.adapters[adapter_name]
        del self.peft_config[adapter_name]

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Inside, for this thread, the model is the source: no RSP and no alpha-mixing.

        Nests, and touches no requires_grad flag.
        """
        with self._steering.within(is_disabled=True):
            yield

    @property
    def active_adapters(self) -> list[str]:
        """The names of the adapters that steer, in the order in which they are composed."""
        return list(self._steering.choice.names)

    @property
    def active_adapter(self) -> str | None:
        """The adapter that steers, or None; where several are composed, `active_adapters` lists them."""
        names = self._steering.choice.names
        return names[0] if names else None

    @property
    def is_disabled(self) -> bool:
        """Whether this thread is inside `disable_adapter()`."""
        return self._steering.is_disabled

    def _common(self, field: str, names: Sequence[str]) -> Any:
        """The alpha, or another field about batch statistics, that these adapters share; 0 for none of them."""
        values = {getattr(self.peft_config[name], field) for name in names if self.adapters.of(name) is not None}
        if len(values) > 1:
            raise ConfigError(
                f"adapters {tuple(names)} have different {field} {sorted(values)}; only equal ones act together"
            )
        return values.pop() if values else 0

    # --- parameters ----------------------------------------------------------------------------------------------

    def rsps(self, adapter_name: str | None = None) -> dict[int, list[RSP]]:
        """depth -> its RSPs (several where a boundary is several tensors); the active adapter's unless one is named."""
        name = adapter_name or self.active_adapter
        return {} if name is None else self.adapters.rsps(name, self.boundaries)

    def adapter_parameters(self, adapter_name: str | None = None) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP of one adapter (the active one by default), by depth."""
        for several in self.rsps(adapter_name).values():
            for rsp in several:
                yield from rsp.parameters()

    @torch.no_grad()
    def reset_adapter(self, adapter_name: str | None = None) -> None:
        """Back to the identity, in place."""
        with VALUES:
            for several in self.rsps(adapter_name).values():
                for rsp in several:
                    rsp.reset_parameters()

    def snapshot(self, adapter_name: str | None = None) -> dict[str, Tensor]:
        """A copy of one adapter's state, for `restore`."""
        with VALUES:
            return self.adapters.snapshot(self._named(adapter_name))

    def restore(self, state: Mapping[str, Tensor], adapter_name: str | None = None) -> None:
        """Put a snapshot back, in place: optimizers and compiled graphs keep their references.

        Raises:
            AdapterLoadError: keys or shapes that are not this adapter's; nothing is changed.
        """
        with VALUES:
            self.adapters.restore(self._named(adapter_name), state)

    def _named(self, adapter_name: str | None) -> str:
        name = adapter_name or self.active_adapter
        if name is None:
            raise AdapterNotFoundError("no adapter is active; name one, or call set_adapter(name) first")
        return name

    def set_scale(self, scale: float, adapter_name: str | None = None) -> dict[str, Tensor]:
        """Move an adapter along the line from the source, in place: gamma' = 1 + s (gamma - 1), beta' = s beta.

        0 is the source, 1 changes nothing; a second call starts from what the first one left.

        Returns:
            The state before, for `restore`.
        """
        check_weights([scale])
        before = self.snapshot(adapter_name)
        self.restore(weighted_state([before], [scale]), adapter_name)
        return before

    def add_weighted_adapter(self, adapters: Sequence[str], weights: Sequence[float], adapter_name: str) -> None:
        """A further adapter, sum_i w_i of the others' distances from the identity; not active until `set_adapter`.

        It takes the first one's configuration, with the boundaries of all.

        Raises:
            AdapterNotFoundError, AdapterNameError, ConfigError: nothing is changed.
        """
        check_weights(weights, len(adapters))
        check_name(adapter_name, self.peft_config)
        self._common("alpha", adapters)
        state = weighted_state([self.snapshot(name) for name in adapters], weights)
        chosen = [b for b in self.boundaries if f"{b.key}.gamma" in state]
        config = self.peft_config[adapters[0]]
        if [b.key for b in chosen] != list(self.adapters.of(adapters[0])):
            config = replace(config, boundaries=tuple(sorted({b.depth for b in chosen})))
        self._add(adapter_name, config, chosen)
        self.restore(state, adapter_name)

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """(parameters of the active adapter, parameters of base and active adapter)."""
        trainable = sum(p.numel() for p in self.adapter_parameters())
        return trainable, trainable + sum(p.numel() for p in self.base_model.parameters())

    def print_trainable_parameters(self) -> None:
        """Prints `trainable params: 128 || all params: 25,557,160 || trainable%: 0.0005`."""
        trainable, total = self.get_nb_trainable_parameters()
        print(
            f"trainable params: {trainable:,d} || all params: {total:,d} || trainable%: {100 * trainable / total:.4f}"
        )

    # --- files and reports: thin doors to the rooms above, imported when they are opened ----------------------------

    def save_pretrained(
        self,
        folder: str | Path,
        adapter_name: str | None = None,
        *,
        origin: "Origin | None" = None,
        results: "CardMetrics | None" = None,
        source: str | None = None,
    ) -> Path:
        """Write one adapter (the active one by default) with its card, all or nothing; saving twice gives equal bytes.

        Args:
            folder: gets adapter_config.json, adapter_model.safetensors, README.md and, with results, metrics.json.
            origin: how to build the base again, where that is known better than the base itself says.
            results: what was measured, for the card and metrics.json.
            source: how the card's snippet names the adapter; None gives a placeholder.

        Raises:
            AdapterSaveError: no adapter to save, a value that is not finite, or a folder that holds a model's own
                config.json; nothing is written.
            OutputError: the disk is full or read-only; an adapter that was in the folder is kept whole.
        """
        from spear_hf.adapters.card import save_with_card

        name = adapter_name or self.active_adapter
        if name is None:
            raise AdapterSaveError("no adapter is active; name one: save_pretrained(folder, adapter_name=...)")
        return save_with_card(self.adapter_config(name, origin), self.snapshot(name), folder, source, results)

    @property
    def head(self) -> Head:
        """How logits come out of a base that is no classifier by itself; empty for a classifier."""
        return head_of(self.base_model, self._reader)

    def adapter_config(self, adapter_name: str, origin: "Origin | None" = None) -> "AdapterConfig":
        """What adapter_config.json says of one adapter."""
        import spear_hf
        from spear_hf.adapters.adapter_config import AdapterConfig
        from spear_hf.adapters.upload import pinned
        from spear_hf.backbones.fingerprint import fingerprint
        from spear_hf.backbones.origin import origin_of

        base = self.base_model
        with self.disable_adapter():
            found = fingerprint(base, behaviour=self._reader is None)  # a reader's base gives no logits by itself
        return AdapterConfig(
            self.peft_config[adapter_name],
            tuple(self.boundaries),
            found,
            pinned(origin or origin_of(base)),
            type(model_inside(base)).__name__,
            spear_hf.__version__,
            self.head,
        )

    def push_to_hub(
        self,
        repo_id: str,
        adapter_name: str | None = None,
        *,
        origin: "Origin | None" = None,
        results: "CardMetrics | None" = None,
        **options: Any,
    ) -> "CommitInfo":
        """Save one adapter and upload it in one commit.

        Args:
            repo_id: "name" or "owner/name"; made where it does not exist.
            origin, results: as for `save_pretrained`.
            options: subfolder, private, revision, create_pr, token, commit_message, as for
                `spear_hf.adapters.upload.push`.
        """
        from spear_hf.adapters.upload import push

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, adapter_name, origin=origin, results=results)
            return push(folder, repo_id, **options)

    def load_adapter(self, source: str | Path, adapter_name: str, **options: Any) -> "LoadReport":
        """Add a saved adapter from a folder or the Hub, not active until `set_adapter`.

        Args:
            options: overwrite, check_base, revision, subfolder, token, as for `spear_hf.steering.loading.load_adapter`.
        """
        from spear_hf.steering.loading import load_adapter

        return load_adapter(self, source, adapter_name, **options)

    @classmethod
    def from_pretrained(cls, model: nn.Module, source: str | Path, **options: Any) -> "SpearModel":
        """The base steered by a saved adapter from a folder or the Hub, loaded strictly.

        Args:
            options: adapter_name, check_base, inputs, logits, processor, revision, subfolder, token, as for
                `spear_hf.steering.loading.load_spear_model`.
        """
        from spear_hf.steering.loading import load_spear_model

        return load_spear_model(model, source, **options)

    def get_model_status(self) -> "ModelStatus":
        """The adapters and boundaries of this model, in figures."""
        from spear_hf.steering.status import model_status

        return model_status(self)

    def verify(self, inputs: Any = None) -> float:
        """Raise unless the active adapter acts on every one of its boundaries; see `status.verify`."""
        from spear_hf.steering.status import verify

        return verify(self, inputs)


def _stacked(rsps: Sequence[RSP | None]) -> Pair:
    """gamma and beta (B, C), a row for each image; the identity where an image has no RSP."""
    some = next(rsp for rsp in rsps if rsp is not None)
    gamma = torch.stack([torch.ones_like(some.gamma) if rsp is None else rsp.gamma for rsp in rsps])
    return gamma, torch.stack([torch.zeros_like(some.beta) if rsp is None else rsp.beta for rsp in rsps])
