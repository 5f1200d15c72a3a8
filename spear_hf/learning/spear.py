"""Spear, the online learner: predict, gate, update, record.

`step` is the only thing that learns. It answers with what earlier batches taught, and only then learns from this one.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.adapters.arithmetic import deviations
from spear_hf.config import SpearConfig, differences
from spear_hf.errors import ConfigError, LaunchError, SpearError
from spear_hf.lean import LeanForward
from spear_hf.learning.alpha_selection import AlphaSelector
from spear_hf.learning.class_marginal import ClassMarginal
from spear_hf.learning.domain_shift import DomainShiftDetector
from spear_hf.learning.objective import Losses, batch_means, should_adapt, spear_loss
from spear_hf.learning.optimize import update
from spear_hf.learning.record import BUDGET, CONFIDENT, NON_FINITE_GRADIENT, NON_FINITE_LOGITS, StepRecord, loss_fields
from spear_hf.learning.tta_views import check_views, further_views, mean_answer
from spear_hf.steering.model import SpearModel
from spear_hf.steering.rsp import RSP
from spear_hf.utils.batch import logits_of, validate_batch
from spear_hf.utils.distributed import BatchShard, ProcessGroup


class Spear:
    """SPeaR's online learner (section 3, Eqs. 6 to 11) for one SpearModel.

    Args:
        model: from `get_spear_model`, compiled or in DistributedDataParallel too; its active adapter is what learns.
        accelerator: an `accelerate.Accelerator`. Under W processes every one of them calls `step` with its slice of the
            global batch, which may be shorter or empty; gate, loss, statistics and RSPs are those of one process with
            the whole batch. Its mixed precision is used for the forwards.
        sync_batch_stats: whether alpha-mixing takes the statistics of the global batch, at one collective for each
            BatchNorm. False takes each process's own, for slow links; W processes then no longer equal one.
        lean: whether the forward keeps for the gradient only what it needs (`LeanForward`): the same bits, less memory
            and time. A compiled model sees to that itself.
        overrides: any SpearConfig field of the objective or the optimizer, in place of the adapter's own configuration
            (learning_rate=..., tau=...). Placement, alpha and statistics_memory belong to the adapter and cannot be
            overridden here.

    Attributes:
        last: the StepRecord of the latest step, or None.

    Raises:
        ConfigError: no SpearModel, or one without an active adapter.
        LaunchError: sharding or replication that cannot work.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        accelerator: Any = None,
        sync_batch_stats: bool = True,
        lean: bool = True,
        **overrides: Any,
    ) -> None:
        self.model, self._call = unwrap(model)
        if self.model.active_adapter is None:
            raise ConfigError("no adapter is active, so there is nothing to learn; call model.set_adapter(name) first")
        for name in ("boundaries", "num_groups", "stem", "alpha", "statistics_memory"):
            if name in overrides:
                raise ConfigError(
                    f"{name} belongs to the adapter; give it to get_spear_model(model, SpearConfig({name}=...))"
                )
        self.processes = ProcessGroup(accelerator)
        self.sync_batch_stats = sync_batch_stats
        self.lean = lean and self._call is self.model and self.model._compiled_call_impl is None
        self._accelerator = accelerator
        self.adapter_name = self.model.active_adapter
        own = self.model.peft_config[self.adapter_name]
        self.config = SpearConfig.from_dict(own.to_dict() | overrides)
        self.optimizer = torch.optim.Adam(
            list(self.parameters()),
            lr=self.config.learning_rate,
            betas=(self.config.adam_beta1, self.config.adam_beta2),
        )
        self.seen = ClassMarginal(self.config.diversity_memory) if self.config.diversity_memory else None
        self._jump = DomainShiftDetector(self.config.domain_jump) if self.config.domain_jump else None
        self._trial = AlphaSelector(self.config.alpha_trial)
        self._in_new_domain = False
        self._start = self.model.snapshot(self.adapter_name)
        self.num_steps = 0
        self.last: StepRecord | None = None

    def step(self, x: Tensor) -> Tensor:
        """Answer a batch with what earlier batches taught, then learn from it.

        Args:
            x: (B, C, H, W) floats, as the model's processor makes them; under several processes this one's slice of
                the global batch, B = 0 included.

        Returns:
            (B, K) logits, detached: the answer, before this batch was learned from.

        Raises:
            InputError: empty, not float, or not finite, on this process or another; nothing was learned on any.
        """
        with torch.inference_mode(False), torch.enable_grad():
            x = x.clone() if isinstance(x, Tensor) and x.is_inference() else x
            self._check_active()
            x, shard = validate_batch(x, self.processes)
            check_views(x, self.config.answer_views)
            norms = self.model.single_value_norms
            with self._sharing(shard):
                logits = self._answer(x, shard)
                answer = mean_answer([logits.detach(), *self._further_answers(x, shard)])
                first, skipped = self._learn(x, shard, logits)
                if skipped != NON_FINITE_LOGITS:
                    self._remember(first, shard)
        gamma, beta = deviations(self.model.snapshot(self.adapter_name))
        self.last = StepRecord(
            step=self.num_steps,
            batch_size=shard.total,
            entropy=float(first.mean_entropy),
            adapted=skipped is None,
            skipped=skipped,
            **loss_fields(None if skipped in (BUDGET, CONFIDENT, NON_FINITE_LOGITS) else first),
            gamma_deviation=gamma,
            beta_deviation=beta,
            single_value_norms=self.model.single_value_norms - norms,
            new_domain=self._in_new_domain,
            whole_statistics=self.model.stream_statistics.whole,
        )
        self.num_steps += 1
        return answer

    def _remember(self, losses: Losses, shard: BatchShard) -> None:
        """What later batches are to know of this one, where the configuration asks for any of it."""
        self.model.stream_statistics.commit()
        if self.seen is not None:
            self.seen.add(losses.mean_prediction, shard.total)

    def _sharing(self, shard: BatchShard) -> AbstractContextManager[None]:
        return self.model.sharding(shard if self.sync_batch_stats else None)

    def _answer(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The logits that are answered and learned from, with the statistics that fit this batch's domain."""
        stream = self.model.stream_statistics
        logits = self._first_logits(x, shard)
        self._in_new_domain = self._has_jumped(logits, shard)
        if self._in_new_domain:
            stream.forget()
            self._trial.clear(stream.whole)
            logits = self._first_logits(x, shard)
        if not (self._trial.is_open and 0 < self.config.alpha < 1 and self.model.has_batch_norms):
            return logits
        with stream.other_way(), stream.collecting(), torch.no_grad():
            others = self._logits(x, shard)
        entropies = {stream.whole: logits.detach(), not stream.whole: others}
        means = {whole: float(batch_means(each, shard)[0]) for whole, each in entropies.items()}
        if not all(map(math.isfinite, means.values())) or self._trial.add(means, shard) == stream.whole:
            return logits
        stream.whole = not stream.whole
        return self._first_logits(x, shard)

    def _has_jumped(self, logits: Tensor, shard: BatchShard) -> bool:
        """Whether the batch is of another domain; one answer on all processes, also where each has statistics."""
        if self._jump is None:
            return False
        come = self._jump.has_come(self.model.stream_statistics.apart())
        return come if self.sync_batch_stats else bool(shard.sum(logits.new_tensor([come], dtype=torch.float32)) > 0)

    def _first_logits(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The answer; with a graph where this batch is likely to be learned from as a whole."""
        again = self.config.learn_stride > 1
        graph = not (again or self._was_confident() or self._is_off_budget())
        keep = "keep" if again or self.config.answer_views > 1 else "off"
        collecting, keeping = self.model.stream_statistics.collecting(), self.model.kept_statistics.during(keep)
        with collecting, keeping, torch.set_grad_enabled(graph):
            return self._logits(x, shard)

    def _further_answers(self, x: Tensor, shard: BatchShard) -> Iterator[Tensor]:
        """Logits (B, K) of the other `answer_views`, under the statistics of the batch as it is."""
        for view in further_views(x, self.config.answer_views):
            with torch.no_grad(), self.model.kept_statistics.during("replay"):
                yield self._logits(view, shard)

    def _is_off_budget(self) -> bool:
        """Whether this batch is one of those that are only answered."""
        return self.num_steps % self.config.learn_every != 0

    def _was_confident(self) -> bool:
        """Whether the gate was shut for the batch before: then this forward makes no graph, which it seldom needs."""
        return self.last is not None and self.last.skipped == CONFIDENT

    def _logits(self, x: Tensor, shard: BatchShard) -> Tensor:
        """(B, K), with a graph that starts at the first RSP."""
        with self._autocast(), LeanForward() if self.lean else nullcontext():
            return logits_of(self._call(x))[: shard.local]

    def _autocast(self) -> AbstractContextManager[None]:
        return nullcontext() if self._accelerator is None else self._accelerator.autocast()

    def _learn(self, x: Tensor, shard: BatchShard, logits: Tensor) -> tuple[Losses, str | None]:
        """The `steps` updates of one batch: the losses before the first, and why one was not made."""
        rsps = self.model.rsps(self.adapter_name)
        losses = spear_loss(logits, rsps, self.config, shard, self.seen)
        first = Losses(*(value.detach() for value in losses))
        if not bool(torch.isfinite(first.mean_entropy)):
            return first, NON_FINITE_LOGITS
        if self.config.hard_gate and not should_adapt(first.mean_entropy, self.config.tau):
            return first, CONFIDENT
        if self._is_off_budget():
            return first, BUDGET
        self._scale_learning_rate(shard.total)
        for k in range(self.config.steps):
            if k > 0 or not logits.requires_grad:
                losses = self._losses_again(x, shard, rsps)
            if not update(losses.total, self.optimizer, self.processes, getattr(self._accelerator, "scaler", None)):
                return first, NON_FINITE_GRADIENT
        return first, None

    def _scale_learning_rate(self, batch_size: int) -> None:
        """Where the configuration asks for it, by the square root of the batch, as a gradient's noise goes."""
        if meant := self.config.learning_rate_batch:
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * math.sqrt(batch_size / meant)

    def _losses_again(self, x: Tensor, shard: BatchShard, rsps: dict[int, list[RSP]]) -> Losses:
        """Of a further forward, with a graph: of the whole batch, or of every learn_stride-th image of it."""
        if self.config.learn_stride == 1:
            return spear_loss(self._logits(x, shard), rsps, self.config, shard, self.seen)
        part, chosen = shard.every(self.config.learn_stride)
        x = x[chosen] if part.local else x[:1]
        with self._sharing(part), self.model.kept_statistics.during("replay"):
            return spear_loss(self._logits(x, part), rsps, self.config, part, self.seen)

    def _check_active(self) -> None:
        if self.adapter_name not in self.model.active_adapters or self.model.is_disabled:
            raise ConfigError(
                f"adapter {self.adapter_name!r} is not active, so this step could not learn it; "
                f"call model.set_adapter({self.adapter_name!r}), and step outside disable_adapter()"
            )

    def parameters(self) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP that learns."""
        return self.model.adapter_parameters(self.adapter_name)

    def reset(self) -> None:
        """Back to the state at construction, the identity or the adapter that was loaded, moments and counters too."""
        self.model.restore(self._start, self.adapter_name)
        self.optimizer.state.clear()
        self.model.stream_statistics.clear()
        self._trial.clear()
        if self._jump is not None:
            self._jump.clear()
        if self.seen is not None:
            self.seen.clear()
        self.num_steps = 0
        self.last = None

    def unload(self) -> nn.Module:
        """The base model, bit for bit as it came in."""
        return self.model.unload()

    def state_dict(self) -> dict[str, Any]:
        """RSPs, Adam's moments, counters and the configuration they belong to."""
        return {
            "config": self._configuration(),
            "rsp": self.model.snapshot(self.adapter_name),
            "start": {key: value.clone() for key, value in self._start.items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "statistics": self.model.stream_statistics.state_dict(),
            "jump": None if self._jump is None else self._jump.state_dict(),
            "trial": self._trial.state_dict(),
            "seen": None if self.seen is None else self.seen.state_dict(),
            "num_steps": self.num_steps,
        }

    def _configuration(self) -> dict[str, Any]:
        """All that must be the same for the same stream to teach the same."""
        apart = self.processes.count > 1 and not self.sync_batch_stats
        return self.config.to_dict() | ({"processes": self.processes.count} if apart else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same configuration and RSPs.

        Raises:
            SpearError: another configuration, other RSPs, or values that are not finite; nothing is changed.
        """
        if differ := differences(state["config"], self._configuration()):
            raise ConfigError(f"this state was learned with another configuration ({differ}); use that one to resume")
        if not all(bool(torch.isfinite(value).all()) for value in state["rsp"].values()):
            raise SpearError("this state holds values that are not finite; resume from an earlier one")
        self.model.restore(state["rsp"], self.adapter_name)
        self._start = {key: value.clone() for key, value in state["start"].items()}
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.model.stream_statistics.load_state_dict(state["statistics"])
        self._trial.load_state_dict(state["trial"])
        if self._jump is not None:
            self._jump.load_state_dict(state["jump"])
        if self.seen is not None:
            self.seen.load_state_dict(state["seen"])
        self.num_steps = state["num_steps"]
        self.last = None


def unwrap(model: nn.Module) -> tuple[SpearModel, nn.Module]:
    """The SpearModel in `model`, and what to call for its logits: the compiled form where there is one.

    DistributedDataParallel is passed by: it would average gradients that `Spear` has summed already.
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
    return inner, call
