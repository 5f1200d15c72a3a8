"""Spear, the online learner: predict, gate, update, record; for one stream or for many at once.

`step` is the only thing that learns. It answers with what earlier batches taught, and only then learns from this one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.backbones.fingerprint import KnownBase
from spear_hf.backbones.head import own_head
from spear_hf.config import SpearConfig, differences
from spear_hf.errors import CheckpointError, ConfigError, InputError, LaunchError
from spear_hf.learning.first_step import refuse_other_ranks
from spear_hf.learning.objective import Losses, evidence, should_adapt, spear_loss
from spear_hf.learning.optimize import adam_steps, are_finite, gradients, update
from spear_hf.learning.record import (
    BUDGET,
    CONFIDENT,
    FEW_CLASSES,
    NON_FINITE_GRADIENT,
    NON_FINITE_LOGITS,
    StepRecord,
    loss_fields,
)
from spear_hf.learning.statistics_memory import StreamStatistics
from spear_hf.learning.steered_forward import Answered, SteeredForward, Values
from spear_hf.learning.stream_batch import StreamBatch, grouped, local_shard
from spear_hf.learning.stream_state import AdapterStream, StreamState
from spear_hf.learning.streams import Streams
from spear_hf.learning.temperature import OF_TEXTS, learning_temperature
from spear_hf.learning.tta_views import check_views, mean_answer
from spear_hf.steering.context import VALUES
from spear_hf.steering.model import SpearModel
from spear_hf.steering.rsp import RSPValues
from spear_hf.utils.batch import check_images, validate_batch
from spear_hf.utils.distributed import ProcessGroup, refuse_sharded
from spear_hf.utils.model_inputs import (
    Further,
    arguments_of,
    check_further,
    images_and_further,
    normal_tensors,
    with_one_row,
)

NO_OVERRIDE = ("boundaries", "num_groups", "stem", "alpha", "memory_images")


class Spear:
    """SPeaR's online learner (section 3, Eqs. 6 to 11) for one SpearModel.

    Any number of threads may call the model while one steps. Steps of different streams run side by side; steps of one
    stream wait for each other.

    Args:
        model: from `get_spear_model`, compiled or in DistributedDataParallel too; its active adapter is what learns.
        accelerator: an `accelerate.Accelerator`. Under W processes every one of them calls `step` with its slice of the
            global batch, which may be shorter or empty; gate, loss, statistics and RSPs are those of one process with
            the whole batch. Its mixed precision is used for the forwards.
        sync_batch_stats: whether alpha-mixing takes the statistics of the global batch, at one collective for each
            BatchNorm. False takes each process's own, for slow links; W processes then no longer equal one.
        lean: whether the forward keeps for the gradient only what it needs (`LeanForward`): the same bits, less memory
            and time. A compiled model sees to that itself.
        compile: torch.compile the forward and the backward pass of a step, once for any number of images and streams;
            the first steps take a minute or more. A model that is compiled already, in a mode of your own, is taken as
            it is. Calling the model itself stays uncompiled.
        max_streams_in_memory: of named streams; the least recently used beyond it are on disk. None keeps all.
        streams_folder: where these are, and where those of an earlier process are found again; None takes a temporary
            folder.
        overrides: any SpearConfig field of the objective or the optimizer, in place of the adapter's own configuration
            (learning_rate=..., tau=...). Placement, alpha and memory_images belong to the adapter and cannot be
            overridden here.

    Attributes:
        stream: the state of the stream that is stepped without a name. Its values are the adapter, so that the model
            itself answers by them.
        streams: name -> StreamState of the others.
        last: the StepRecord of the latest step, or None; a dictionary name -> StepRecord where it was of named streams.

    Raises:
        ConfigError: no SpearModel, or one without an active adapter.
        LaunchError: sharding or replication that cannot work.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> tta = Spear(get_spear_model(timm.create_model("test_resnet")))
    >>> logits = tta.step(torch.randn(4, 3, 32, 32), streams=["cam-1", "cam-1", "cam-7", "cam-7"])
    >>> sorted(tta.streams)
    ['cam-1', 'cam-7']
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        accelerator: Any = None,
        sync_batch_stats: bool = True,
        lean: bool = True,
        compile: bool = False,
        max_streams_in_memory: int | None = None,
        streams_folder: str | Path | None = None,
        **overrides: Any,
    ) -> None:
        self.model, call = unwrap(model)
        if compile and call is self.model:
            call = compiled(call)
        if self.model.active_adapter is None:
            raise ConfigError("no adapter is active, so there is nothing to learn; call model.set_adapter(name) first")
        for name in NO_OVERRIDE:
            if name in overrides:
                raise ConfigError(
                    f"{name} belongs to the adapter; give it to get_spear_model(model, SpearConfig({name}=...))"
                )
        most = max_streams_in_memory
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ConfigError(f"max_streams_in_memory={most!r} is not allowed; give at least 1, or None")
        self.processes = ProcessGroup(accelerator)
        self.sync_batch_stats = sync_batch_stats
        self.lean = lean and call is self.model and self.model._compiled_call_impl is None
        self._accelerator = accelerator
        self.adapter_name = self.model.active_adapter
        own = self.model.peft_config[self.adapter_name]
        self.config = SpearConfig.from_dict(own.to_dict() | overrides)
        self._forward = SteeredForward(
            self.model,
            call,
            self.adapter_name,
            self.config,
            lean=self.lean,
            sync_batch_stats=sync_batch_stats,
            accelerator=accelerator,
        )
        asked = self.config.learning_entropy
        self._entropy = asked if asked is not None else OF_TEXTS if own_head(self.model.base_model).labels else 0.0
        self._base = KnownBase(self.model.base_model)
        self._arguments = arguments_of(self.model.base_model)
        self._is_compared = self.processes.count == 1
        channels = self._forward.norms.total
        self.stream = AdapterStream(self.config, self.model, self.adapter_name, self._base, channels)
        self.streams = Streams(self._new_state, max_streams_in_memory, streams_folder)
        self.last: StepRecord | dict[str, StepRecord] | None = None

    def _new_state(self) -> StreamState:
        """Of a stream that begins where the adapter began."""
        return StreamState(self.config, self.stream.start, self._base, self._forward.norms.total)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam over the adapter's parameters; another optimizer of them can be put in its place."""
        return self.stream.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.stream.optimizer = optimizer

    @property
    def num_steps(self) -> int:
        """Batches of the stream without a name."""
        return self.stream.num_steps

    # --- one step --------------------------------------------------------------------------------------------------

    def step(
        self,
        x: Tensor | Mapping[str, Any] | None = None,
        *,
        pixel_values: Tensor | None = None,
        streams: str | Sequence[str] | None = None,
        **further: Any,
    ) -> Tensor:
        """Answer a batch with what earlier batches taught, then learn from it.

        With `streams`, each image is answered and learned from by its own stream's state, as if each stream had a model
        of its own and its images of this batch were the batch; all of them take one forward and one backward pass.
        Named streams are local to a process: under several, route each stream to one of them, and no process waits for
        another.

        Args:
            x: (B, C, H, W) floats, as the model's processor makes them, or what the processor returns; under
                several processes this one's slice of the global batch, B = 0 included where no streams are named.
            pixel_values: the images, in place of x.
            streams: a name for each image, or one for all; a new name begins where the adapter began. None is the
                stream whose values are the adapter.
            further: what the model takes beside images, such as pixel_attention_mask: a row for each image, or a
                value for all. `step(**batch)` passes over labels, and over what else a stream adds.

        Returns:
            (B, K) logits, detached: the answer, before this batch was learned from.

        Raises:
            InputError: empty, not float, or not finite, on this process or another; names that are not as many as
                images; or, at the first step, outputs that are probabilities, or that no gradient comes through.
                Nothing was learned on any.
            LaunchError: at the first step, a process with another configuration, base or adapter.
        """
        images, with_them = images_and_further(x, pixel_values, further, self._arguments)
        with torch.inference_mode(False), torch.enable_grad():
            images, with_them = normal_tensors(images, with_them)
            self._check_active()
            if streams is None:
                batch = self._unnamed(images, with_them)
                self._compare_ranks()
                with self.stream.lock:
                    answer = self._answer_and_learn(batch)
                    self.last = self.stream.last
                return answer
            names, index = self._named(streams, images, with_them)
            with self.streams.held(names) as states:
                shard = local_shard(len(images))
                answer = self._answer_and_learn(StreamBatch(images, shard, states, index, with_them))
                self.last = {n: s.last for n, s in zip(names, states, strict=True) if s.last is not None}
            return answer

    def _unnamed(self, images: Tensor, further: Further) -> StreamBatch:
        """The batch of the stream without a name, over all processes, checked."""
        images, shard = validate_batch(images, self.processes, further)
        return StreamBatch(images, shard, [self.stream], None, further if shard.local else with_one_row(further))

    def _named(self, streams: str | Sequence[str], images: Tensor, further: Further) -> tuple[list[str], Tensor | None]:
        """What `grouped` finds for a batch of named streams, checked."""
        check_images(images)
        check_further(further, len(images))
        return grouped(streams, len(images))

    def _compare_ranks(self) -> None:
        """At the first step: raise LaunchError on every process where they do not learn the same thing."""
        if not self._is_compared:
            refuse_other_ranks(self.processes, self._configuration(), self._base(), self.stream.rsp)
            self._is_compared = True

    def _answer_and_learn(self, batch: StreamBatch) -> Tensor:
        """One step of every stream in the batch."""
        check_views(batch.x, self.config.tta_views)
        values = self._forward.values(batch.states)
        found = self._forward.answer(batch, values)
        further = self._forward.further_answers(batch, values, found.statistics)
        answer = mean_answer([found.logits.detach(), *further])
        losses, skipped = self._learn(batch, values, found)
        self._remember(batch, losses, skipped, found)
        self._record(batch, losses, skipped, found)
        return answer

    @torch.no_grad()
    def predict(
        self,
        x: Tensor | Mapping[str, Any] | None = None,
        *,
        pixel_values: Tensor | None = None,
        stream: str | None = None,
        streams: str | Sequence[str] | None = None,
        **further: Any,
    ) -> Tensor:
        """Answer a batch as `step` would, memory included, and learn and remember nothing.

        Args:
            x, pixel_values, further: as for `step`.
            stream: one name for all images.
            streams: as for `step`, but each must be known. None is the stream whose values are the adapter.

        Returns:
            (B, K) logits.

        Raises:
            InputError: as for `step`; and a stream that was never stepped or loaded.
        """
        if stream is not None and streams is not None:
            raise InputError("stream= and streams= were both given; give one name for all images, or one for each")
        images, with_them = images_and_further(x, pixel_values, further, self._arguments)
        self._check_active()
        named = stream if streams is None else streams
        if named is None:
            return self._predicted(self._unnamed(images, with_them))
        names, index = self._named(named, images, with_them)
        with self.streams.held(names, create=False, locked=False) as states:
            return self._predicted(StreamBatch(images, local_shard(len(images)), states, index, with_them))

    def _predicted(self, batch: StreamBatch) -> Tensor:
        check_views(batch.x, self.config.tta_views)
        with VALUES:  # a step in another thread publishes values and memory under this lock
            memories = [state.statistics.copy() for state in batch.states]
            shares = [state.alpha_shares for state in batch.states]
            values = {key: value.detach().clone() for key, value in self._forward.values(batch.states).items()}
        forward = self._forward
        if any(each.shares is None for each in shares):
            shares = forward.shares_with(batch)
        taken = [forward.shares_of(*each) for each in zip(batch.states, shares, strict=True)]
        statistics = forward.statistics(batch, taken, memories)
        logits = self._forward.logits(batch, values, statistics)
        return mean_answer([logits, *self._forward.further_answers(batch, values, statistics)])

    # --- learning --------------------------------------------------------------------------------------------------

    def _losses(self, batch: StreamBatch, values: Values, logits: Tensor) -> Losses:
        """Of each stream: scalars for one, (S,) for several."""
        classes = [state.classes for state in batch.states if state.classes is not None] or None
        seen = classes[0] if classes and batch.index is None else classes
        shard, groups, temperature = batch.shard, batch.groups, None
        if self._entropy:
            temperature = learning_temperature(logits, self._entropy, shard, groups)
        return spear_loss(logits, self._by_depth(values), self.config, shard, seen, groups, temperature)

    def _by_depth(self, values: Values) -> dict[int, list[RSPValues]]:
        found: dict[int, list[RSPValues]] = {}
        for boundary in self.model.boundaries:
            if (gamma := values.get(f"{boundary.key}.gamma")) is not None:
                found.setdefault(boundary.depth, []).append(RSPValues(gamma, values[f"{boundary.key}.beta"]))
        return found

    def _learn(self, batch: StreamBatch, values: Values, found: Answered) -> tuple[Losses, list[str | None]]:
        """The `steps` updates of each stream: the losses before the first, and why one was not made."""
        losses = self._losses(batch, values, found.logits)
        first = Losses(*(value.detach() for value in losses))
        means = first.mean_entropy.view(-1)
        skipped = [self._why_skipped(state, mean) for state, mean in zip(batch.states, means, strict=True)]
        classes = first.mean_prediction.shape[-1]
        for k in range(self.config.steps):
            learning = [i for i, why in enumerate(skipped) if why is None]
            if not learning:
                break
            if k == 0 and found.logits.requires_grad:
                rows, states = learning, [batch.states[i] for i in learning]
                total = losses.total if batch.index is None else losses.total[torch.tensor(learning)].sum()
            else:
                part = batch.of(learning)
                rows, states = list(range(len(learning))), part.states
                values, total = self._total_again(part, found.statistics, learning)
            moved = self._update(states, values, rows, total, [batch.sizes[i] for i in learning], classes)
            for i, has_moved in zip(learning, moved, strict=True):
                skipped[i] = None if has_moved else NON_FINITE_GRADIENT
        return first, skipped

    def _total_again(self, part: StreamBatch, answered: StreamStatistics, learning: list[int]) -> tuple[Values, Tensor]:
        """The summed loss of a further forward: over whole batches, or over every learn_stride-th image of a stream.

        Args:
            part: the images of the streams that learn.
            answered: the statistics that the answer was normalised by; those of a part of the images are theirs.
            learning: the places of the streams among those of `answered`.
        """
        values = self._forward.values(part.states)
        if self.config.learn_stride == 1:
            statistics: Any = self._forward.statistics(part)
        else:
            part = part.every(self.config.learn_stride)
            index = None
            if answered.index is not None:
                index = torch.tensor(learning)[torch.zeros(len(part.x)).long() if part.index is None else part.index]
            statistics = answered.replayed(index, answered.sizes)
        return values, self._losses(part, values, self._forward.logits(part, values, statistics)).total.sum()

    def _update(
        self,
        states: Sequence[StreamState],
        values: Values,
        rows: list[int],
        total: Tensor,
        sizes: list[int],
        classes: int,
    ) -> list[bool]:
        """One Adam step of each stream down the summed loss; False for those whose gradient is not finite.

        Args:
            states: of the streams that learn.
            values: the leaves that the loss was computed from, (C,) each, or (S, C) with their rows among others.
            rows: the places of the streams in `values`.
            total: each stream's loss depends on its own rows alone, so one backward pass serves all.
            sizes: images of each stream in this batch.
            classes: K.
        """
        seen = [state.classes for state in states if state.classes is not None] or None
        shares = evidence(sizes, classes, self.config, seen)
        rates = [self._learning_rate(*each) for each in zip(states, sizes, shares, strict=True)]
        own = states[0]
        with self._forward.backward_context():
            if isinstance(own, AdapterStream):
                if self.config.learning_rate_batch or self.config.evidence_images or self.config.alpha_images:
                    own.optimizer.param_groups[0]["lr"] = rates[0]
                scaler = getattr(self._accelerator, "scaler", None)
                return [update(total, own.optimizer, self.processes, scaler, lock=VALUES)]
            found = torch.cat([g for g in gradients(total, list(values.values())) if g is not None], -1)
        found = found[None] if found.dim() == 1 else found[torch.tensor(rows)]
        finite = [are_finite([each]) for each in found]
        moved = [i for i, fine in enumerate(finite) if fine]
        betas = self.config.adam_beta1, self.config.adam_beta2
        after = adam_steps([states[i].learned for i in moved], found[moved], [rates[i] for i in moved], betas)
        with VALUES:
            for i, learned in zip(moved, after, strict=True):
                states[i].learned = learned
        return finite

    def _learning_rate(self, state: StreamState, images: int, share: float) -> float:
        """With the root of the batch, where the configuration asks for it, and with the root of the evidence share.

        A gradient's noise goes with the root of the images that it is of. Where most layers have not moved there is
        little to learn, and steps are as much smaller as alpha is.
        """
        meant = self.config.learning_rate_batch
        return self.config.learning_rate * state.alpha_shares.mean * math.sqrt(share * (images / meant if meant else 1))

    def _why_skipped(self, state: StreamState, mean_entropy: Tensor) -> str | None:
        if not bool(torch.isfinite(mean_entropy)):
            return NON_FINITE_LOGITS
        if self.config.hard_gate and not should_adapt(mean_entropy, self.config.tau):
            return CONFIDENT
        if state.shows_few_classes:
            return FEW_CLASSES
        return BUDGET if self._forward.is_off_budget(state) else None

    def _remember(self, batch: StreamBatch, losses: Losses, skipped: list[str | None], found: Answered) -> None:
        """What later batches are to know of this one, where the configuration asks for any of it."""
        predictions = losses.mean_prediction.view(len(batch.states), -1)
        with VALUES:
            for state, why, kept in zip(batch.states, skipped, found.statistics.collected(), strict=True):
                if why != NON_FINITE_LOGITS and kept is not None:
                    state.statistics.kept = kept
        for state, why, mean, size in zip(batch.states, skipped, predictions, batch.sizes, strict=True):
            if state.classes is not None and why != NON_FINITE_LOGITS:
                state.classes.add(mean, size)
            if state.was_taught_by_few:
                state.unlearn()

    def _record(self, batch: StreamBatch, losses: Losses, skipped: list[str | None], found: Answered) -> None:
        """The StepRecord of each stream."""
        rows = [value.view(-1).tolist() for value in (losses.mean_entropy, *losses[2:])]
        for i, (state, why, size) in enumerate(zip(batch.states, skipped, batch.sizes, strict=True)):
            gamma, beta = state.deviations()
            minimised = (
                None if why in (BUDGET, CONFIDENT, FEW_CLASSES, NON_FINITE_LOGITS) else [row[i] for row in rows[1:]]
            )
            state.last = StepRecord(
                step=state.num_steps,
                batch_size=size,
                entropy=rows[0][i],
                adapted=why is None,
                skipped=why,
                **loss_fields(minimised),
                gamma_deviation=gamma,
                beta_deviation=beta,
                single_value_norms=found.statistics.single_values[i],
                new_domain=found.shifted[i],
                alpha=self._forward.mean_alpha(state),
            )
            state.num_steps += 1

    def _check_active(self) -> None:
        if self.adapter_name not in self.model.active_adapters or self.model.is_disabled:
            raise ConfigError(
                f"adapter {self.adapter_name!r} is not active, so this step could not learn it; "
                f"call model.set_adapter({self.adapter_name!r}), and step outside disable_adapter()"
            )

    # --- what every method can do ----------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP of the adapter that learns."""
        return self.model.adapter_parameters(self.adapter_name)

    def reset(self) -> None:
        """Back to the start, the identity or the adapter that was loaded; named streams are forgotten."""
        self.stream.reset()
        self.streams.clear()
        self.last = None

    def unload(self) -> nn.Module:
        """The base model, bit for bit as it came in."""
        return self.model.unload()

    def state_dict(self) -> dict[str, Any]:
        """The state of the stream without a name, and "streams", those of the others by name."""
        own = self.stream.state_dict() | {"config": self._configuration()}
        if not self.streams:
            return own
        return own | {"streams": {name: self.streams[name].state_dict() for name in self.streams}}

    def _configuration(self) -> dict[str, Any]:
        """All that must be the same for the same stream to teach the same."""
        apart = self.processes.count > 1 and not self.sync_batch_stats
        return self.config.to_dict() | ({"processes": self.processes.count} if apart else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same configuration and RSPs.

        Raises:
            SpearError: another configuration, other RSPs, parts that are missing, or values that are not finite;
                nothing is changed.
        """
        config, streams = state.get("config", {}), state.get("streams", {})
        if not isinstance(config, Mapping) or not isinstance(streams, Mapping):
            raise CheckpointError('"config" and "streams" of this state are no mappings; resume from one that is whole')
        if differ := differences(config, self._configuration()):
            raise ConfigError(f"this state was learned with another configuration ({differ}); use that one to resume")
        own = {**state, "config": self.config.to_dict()}
        self.stream.check_state_dict(own)
        named: dict[str, StreamState] = {}
        for name, each in streams.items():
            named[name] = self._new_state()
            named[name].load_state_dict(each)
        self.streams.replace(named)
        self.stream.load_state_dict(own)
        self.last = None


def compiled(model: nn.Module) -> Any:
    """The model as one graph for batches of any size; torch compiles it when it is first called.

    >>> from torch import nn
    >>> hasattr(compiled(nn.Linear(3, 2)), "_orig_mod")
    True
    """
    options: dict[str, Any] = {"fullgraph": True, "dynamic": True}
    if "recompile_limit" in signature(torch.compile).parameters:
        # Gradients or none, one image, one stream or several: each is a graph, and torch's own limit is 8
        options["recompile_limit"] = 64
    compile_model: Any = torch.compile
    return compile_model(model, **options)


def unwrap(model: nn.Module) -> tuple[SpearModel, nn.Module]:
    """The SpearModel in `model`, and what to call for its logits: the compiled form where there is one.

    DistributedDataParallel is passed by: it would average gradients that `Spear` has summed already.

    >>> import timm
    >>> from spear_hf import get_spear_model
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> unwrap(model) == (model, model)
    True
    """
    if isinstance(model, nn.DataParallel):
        raise LaunchError(
            "DataParallel copies the model for every batch, and what the copies learn is thrown away; "
            "start one process for each device with `accelerate launch` and pass accelerator="
        )
    call = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    inner = getattr(call, "_orig_mod", call)
    if not isinstance(inner, SpearModel):
        raise ConfigError(
            f"Spear learns for a SpearModel, compiled or in DistributedDataParallel too, not a {type(inner).__name__}; "
            "call get_spear_model(model) first"
        )
    refuse_sharded(inner)
    if any(parameter.is_meta for parameter in inner.adapters.parameters()):
        raise ConfigError(
            "the RSPs hold no values, as after cpu_offload(model); off-load the base alone: "
            "cpu_offload(model.base_model)"
        )
    return inner, call
