"""SteeredForward: how the images of one stream, or of several, are answered by the streams' own values."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.config import SpearConfig
from spear_hf.learning.alpha_shares import AlphaShares, ImageMeans
from spear_hf.learning.first_step import refuse_no_gradient, refuse_probabilities
from spear_hf.learning.objective import log_probabilities
from spear_hf.learning.record import CONFIDENT
from spear_hf.learning.statistics_memory import NormLayout, ReplayedStatistics, StatisticsMemory, StreamStatistics
from spear_hf.learning.stream_batch import StreamBatch
from spear_hf.learning.stream_state import AdapterStream, StreamState
from spear_hf.learning.tta_views import further_views
from spear_hf.steering.context import Pair, SteeringContext
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of

SMALL = 16_384  # values of a batch up to which the memory is not worth the calls in Python that a lean layer costs

Values = dict[str, Tensor]
""" "<boundary key>.gamma" and ".beta" -> (C,) for one stream, (S, C) with a row for each of several."""


@dataclass
class Answered:
    """What the images of a batch were answered with.

    Args:
        logits: (B, K), with a graph to the values where the batch is likely to be learned from.
        statistics: the batch-norm statistics of that forward.
        shifted: for each stream, whether its images are of another domain than those before.
    """

    logits: Tensor
    statistics: StreamStatistics
    shifted: list[bool]


class SteeredForward:
    """Forwards of a SpearModel under the values and statistics of streams.

    Args:
        model: whose adapters, boundaries and batch norms these are.
        call: what to call for its logits: the model, or its compiled form.
        adapter_name: the adapter in whose place a stream's values act.
        config: of the streams.
        lean: whether a forward keeps for the gradient only what it needs.
        sync_batch_stats: whether statistics are those of the global batch.
        accelerator: gives the mixed precision of the forwards; None for none.
    """

    def __init__(
        self,
        model: SpearModel,
        call: nn.Module,
        adapter_name: str,
        config: SpearConfig,
        *,
        lean: bool,
        sync_batch_stats: bool,
        accelerator: Any,
    ) -> None:
        self.model, self.call, self.adapter_name, self.config = model, call, adapter_name, config
        self.lean, self.sync_batch_stats, self.accelerator = lean, sync_batch_stats, accelerator
        self.is_compiled = call is not model or model._compiled_call_impl is not None
        self.norms = NormLayout(model.base_model)
        self._local = threading.local()
        self._is_checked = False  # whether a forward with gradients has shown that there is something to learn from

    # --- one forward -----------------------------------------------------------------------------------------------

    def values(self, states: Sequence[StreamState]) -> Values:
        """The values of these streams as leaves of a graph."""
        if len(states) == 1 and isinstance(states[0], AdapterStream):
            return dict(zip(states[0].layout.keys, states[0].parameters, strict=True))
        flat = states[0].flat.clone() if len(states) == 1 else torch.stack([state.flat for state in states])
        return states[0].layout.split(flat.requires_grad_())

    def logits(self, batch: StreamBatch, values: Values, statistics: StreamStatistics | ReplayedStatistics) -> Tensor:
        """(B, K), with a graph that starts at the first RSP where gradients are enabled."""
        self._local.context = context = self.context(batch, values, statistics)
        with self.model.steering(context), self._autocast():
            logits = logits_of(self.call(batch.x, **batch.further))
        if not self._is_checked and torch.is_grad_enabled():
            refuse_probabilities(logits)
            refuse_no_gradient(logits, values, self.model.base_model)
            self._is_checked = True
        return logits[: batch.shard.local]

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.accelerator is None else self.accelerator.autocast()

    @contextmanager
    def backward_context(self) -> Iterator[None]:
        """Around a backward pass: gradient checkpointing runs forwards again in it, steered as the last one was.

        On a CPU they run in this thread, on a GPU in a thread of autograd.
        """
        context = self._local.context
        with self.model.steering(context), self.model.lending(context):
            yield

    def context(
        self, batch: StreamBatch, values: Values, statistics: StreamStatistics | ReplayedStatistics
    ) -> SteeringContext:
        """What acts in a forward over this batch: the streams' values in the place of the adapter's."""
        pairs: dict[str, tuple[Pair, ...]] = {}
        for boundary in self.model.boundaries:
            found: list[Pair] = []
            for name in self.model.active_adapters:
                if name != self.adapter_name:
                    rsp = self.model.adapters.rsp(name, boundary.key)
                    found += [] if rsp is None else [(rsp.gamma, rsp.beta)]
                elif (gamma := values.get(f"{boundary.key}.gamma")) is not None:
                    found.append(batch.rows(gamma, values[f"{boundary.key}.beta"]))
            if found:
                pairs[boundary.key] = tuple(found)
        shard = batch.shard if self.sync_batch_stats else None
        lean = self.lean and batch.x.numel() > SMALL
        return SteeringContext(pairs, self.config.alpha, statistics, shard, lean)

    def statistics(
        self,
        batch: StreamBatch,
        shares: Sequence[Tensor | None] | None = None,
        memories: Sequence[StatisticsMemory] | None = None,
    ) -> StreamStatistics:
        """Those that a forward over this batch normalises by.

        Args:
            batch: the images, and their streams.
            shares: how much of alpha each layer takes, for each stream; None takes what the streams know.
            memories: of the streams; None takes the streams' own.
        """
        if shares is None:
            shares = [self.shares_of(state, state.alpha_shares) for state in batch.states]
        if memories is None:
            memories = [state.statistics for state in batch.states]
        return StreamStatistics(memories, self.norms, batch.index, batch.sizes, shares, in_tensors=self.is_compiled)

    def shares_of(self, state: StreamState, measured: AlphaShares) -> Tensor | None:
        """(L,), how much of alpha each layer takes; None where all take all of it."""
        if not state.early_only:
            return measured.shares
        shares = measured.shares_of_few() if state.shows_few_classes else measured.shares
        early = self.norms.is_early.double()
        return early if shares is None else early * shares

    # --- the answer ------------------------------------------------------------------------------------------------

    def answer(self, batch: StreamBatch, values: Values) -> Answered:
        """The logits that are answered and learned from, under the statistics that fit each stream's domain."""
        fresh = [i for i, state in enumerate(batch.states) if state.alpha_shares.shares is None]
        self._measure_shares(batch, fresh)
        statistics = self.statistics(batch)
        logits = self._first_logits(batch, values, statistics)
        found = Answered(logits, statistics, self._shifted(batch, logits, statistics))
        if any(found.shifted):
            chosen = [i for i, shifted in enumerate(found.shifted) if shifted]
            self._begin_domains(batch, values, chosen)
            self._measure_shares(batch, chosen)
            self._answer_again(batch, values, found, chosen)
            fresh += chosen
        if others := self._seeing_fewer_or_more_classes(batch, values, found.logits.detach()):
            self._answer_again(batch, values, found, others)
        self._measure_shares(batch, [i for i in range(len(batch.states)) if i not in fresh])  # for the next batch
        return found

    def _begin_domains(self, batch: StreamBatch, values: Values, chosen: Sequence[int]) -> None:
        """Let these streams begin anew, and `values` with them."""
        for i in chosen:
            batch.states[i].begin_domain()
            for key, start in batch.states[i].layout.split(batch.states[i].flat).items():
                now = values[key].data  # views of one leaf, which autograd does not let be written
                (now if now.dim() == 1 else now[i]).copy_(start)

    def _seeing_fewer_or_more_classes(self, batch: StreamBatch, values: Values, logits: Tensor) -> list[int]:
        """The streams whose answers show that they are of few classes at a time after all, or of many."""
        if all(state.skew is None for state in batch.states):
            return []
        logits = self._with_early_answers(batch, values, logits)
        p = log_probabilities(logits).exp()
        p = batch.shard.gathered(p) if batch.index is None else p
        changed = []
        for i, state in enumerate(batch.states):
            if state.skew is None:
                continue
            first, was = state.skew.is_of_few is None, state.early_only
            state.skew.add(p if batch.index is None else p[batch.rows_of([i]).to(p.device)])
            state.skew.decide()
            state.was_taught_by_few = first and state.shows_few_classes
            if state.early_only != was:
                changed.append(i)
        return changed

    def _with_early_answers(self, batch: StreamBatch, values: Values, logits: Tensor) -> Tensor:
        """The logits; of streams that are not known to show many classes, with all of alpha in early layers alone.

        With as much of alpha as shares allow a network can still be sure of one class.
        """
        unknown = [i for i, state in enumerate(batch.states) if state.early_only]
        if not unknown:
            return logits
        part = batch.of(unknown)
        shares = [self.norms.is_early.double()] * len(unknown)
        with torch.no_grad():
            early = self.logits(part, batch.values_of(values, unknown), self.statistics(part, shares))
        if part is batch:
            return early
        return logits.index_copy(0, batch.rows_of(unknown).to(early.device), early.to(logits.dtype))

    def _measure_shares(self, batch: StreamBatch, chosen: Sequence[int]) -> None:
        """Let these streams, of those whose domain is new, know how far these images are from the source."""
        if chosen := [i for i in chosen if batch.states[i].alpha_shares.is_open]:
            part = batch.of(chosen)
            for state, shares in zip(part.states, self.shares_with(part), strict=True):
                state.alpha_shares = shares

    def shares_with(self, batch: StreamBatch) -> list[AlphaShares]:
        """What the streams know of their shares of alpha with these images: one more forward, of the base alone."""
        known = [state.alpha_shares.copy() for state in batch.states]
        if not any(shares.is_open for shares in known):
            return known
        seen = ImageMeans(self.norms)
        with torch.no_grad(), self._autocast(), self.model.steering(SteeringContext({}, self.config.alpha, seen)):
            self.model(batch.x, **batch.further)
        # of the global batch even where statistics are each process's own: the size of a step is one for all
        for shares, means, size in zip(known, seen.of_streams(batch.shard, batch.groups), batch.sizes, strict=True):
            shares.add(means, size, self.norms)
        return known

    def _answer_again(self, batch: StreamBatch, values: Values, found: Answered, chosen: list[int]) -> None:
        """The images of these streams once more, in place of what was found."""
        part = batch.of(chosen)
        statistics = self.statistics(part)
        again = self._first_logits(part, batch.values_of(values, chosen), statistics)
        if part is batch:
            found.logits, found.statistics = again, statistics
        else:
            rows = batch.rows_of(chosen).to(again.device)
            found.logits = found.logits.index_copy(0, rows, again.to(found.logits.dtype))
            found.statistics.replace_rows(statistics, chosen)

    def _first_logits(self, batch: StreamBatch, values: Values, statistics: StreamStatistics) -> Tensor:
        """With a graph where one of the streams is likely to learn from its images as a whole."""
        likely = not self._is_checked or any(self._may_learn(state) for state in batch.states)
        with torch.set_grad_enabled(likely and self.config.learn_stride == 1):
            return self.logits(batch, values, statistics)

    def mean_alpha(self, state: StreamState) -> float | None:
        """Of the batch norms, now; None where there are none."""
        if not self.model.has_batch_norms:
            return None
        shares = self.shares_of(state, state.alpha_shares)
        return self.config.alpha * (1.0 if shares is None else float(shares.mean()))

    def _may_learn(self, state: StreamState) -> bool:
        return not (state.shows_few_classes or self.was_confident(state) or self.is_off_budget(state))

    def is_off_budget(self, state: StreamState) -> bool:
        """Whether this batch is one of those that are only answered."""
        return state.num_steps % self.config.adapt_every != 0

    def was_confident(self, state: StreamState) -> bool:
        """Whether the gate was shut for the batch before: then this forward seldom needs a graph."""
        return state.last is not None and state.last.skipped == CONFIDENT

    def _shifted(self, batch: StreamBatch, logits: Tensor, statistics: StreamStatistics) -> list[bool]:
        """For each stream whether its images are of another domain; one answer on all processes."""
        if all(state.shift is None for state in batch.states):
            return [False] * len(batch.states)
        far = statistics.log_distances()
        for state, each in zip(batch.states, far, strict=True):
            if state.early_only:  # what the images show may change, in the same domain
                for layer in each.keys() - self.norms.early:
                    del each[layer]
        found = [
            state.shift is not None and state.shift.has_come(each)
            for state, each in zip(batch.states, far, strict=True)
        ]
        if batch.index is None and not self.sync_batch_stats:  # each process has statistics of its own
            found = [bool(batch.shard.sum(logits.new_tensor(found, dtype=torch.float32)) > 0)]
        return found

    def further_answers(self, batch: StreamBatch, values: Values, statistics: StreamStatistics) -> Iterator[Tensor]:
        """Logits (B, K) of the other `tta_views`, under the statistics of the batch as it is."""
        for view in further_views(batch.x, self.config.tta_views):
            with torch.no_grad():
                yield self.logits(batch.with_images(view), values, statistics.replayed(batch.index, batch.sizes))
