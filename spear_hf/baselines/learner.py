"""Learner: the online learner of every method that learns. It answers, asks an objective for a loss, and lowers that.

Where to steer and what to minimise are two objects that compose, so that each objective can be tried on each place:

    METHODS["roid"](model)                                      # ROID, on gamma and beta of the normalisation layers
    METHODS["roid"](model, where="rsp", config=SpearConfig())   # the same objective on RSPs
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.descent import descend
from spear_hf.baselines.objective import Batch, Objective
from spear_hf.baselines.options import Options, given, signature_of
from spear_hf.baselines.outcome import UNRELIABLE, Outcome
from spear_hf.baselines.roles import Answer, OwnLogits, Upkeep
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.where import AdaptedParameters, place
from spear_hf.config import differences
from spear_hf.errors import ConfigError, LaunchError
from spear_hf.learning.record import NON_FINITE_LOGITS
from spear_hf.utils.batch import validate_batch
from spear_hf.utils.distributed import ProcessGroup


class Learner:
    """Answers each batch, then takes one step down an objective; satisfies TTAMethod.

    Changes the base in place until `unload`: hooks, flags, and what is learned.

    Args:
        model: any image classifier.
        objective: what is minimised.
        rule: the optimizer that the method was published with. `optimizer` and its like among the options change single
            fields; RSPs and buffer layers come with a rule of their own, which they change just so.
        answer: what is answered.
        upkeep: what follows each step, in this order.
        options: see Options.

    Attributes:
        needs_source: whether it cannot be made without images of the source.
        last: the Outcome of the latest step, or None.

    Raises:
        ConfigError, LaunchError: nothing is changed.
    """

    needs_source: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """`inspect.signature` names the options too, for whoever looks up what a method takes."""
        cls.__signature__ = signature_of(cls)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        rule: OptimizerConfig,
        *,
        answer: Answer | None = None,
        upkeep: Sequence[Upkeep] = (),
        **options: Unpack[Options],
    ) -> None:
        options = given(options)
        self.processes = ProcessGroup(options.get("accelerator"))
        if self.processes.count > 1:
            raise LaunchError(
                f"{type(self).__name__} learns from one process, {self.processes.count} run; start one, or use Spear"
            )
        chosen: dict[str, Any] = {f.name: options[f.name] for f in fields(OptimizerConfig) if f.name in options}
        replace(rule, **chosen)  # refuses before anything is changed
        self.where: AdaptedParameters = place(
            options.get("where") or "norm", model, skip=options.get("skip"), config=options.get("config")
        )
        self.model: nn.Module = getattr(self.where, "model", model)
        self.learned = self.where.learned
        self.rule = replace(self.where.rule or rule, **chosen)
        self.optimizer = self.rule.make(self.learned.parameters)
        self.objective = objective
        self._answer = answer or OwnLogits()
        self._upkeep = list(upkeep)
        self._has_batch_norms = self.where.has_batch_norms
        self.whole: int | None = None
        self.num_steps = 0
        self.last: Outcome | None = None

    def step(self, x: Tensor) -> Tensor:
        """Answer a batch with what earlier batches taught, then learn from it.

        Args:
            x: (B, C, H, W) floats, as the model's processor makes them.

        Returns:
            (B, K) logits, detached.

        Raises:
            InputError: empty, not float, or not finite; nothing was learned.
        """
        with torch.inference_mode(False), torch.enable_grad():
            x = x.clone() if isinstance(x, Tensor) and x.is_inference() else x
            x, _ = validate_batch(x, self.processes)
            answer, loss, skipped = self._answer_and_learn(x)
        self.last = Outcome(self.num_steps, len(x), skipped is None, skipped, loss)
        self.num_steps += 1
        return answer

    def _answer_and_learn(self, x: Tensor) -> tuple[Tensor, float | None, str | None]:
        """The answer, the loss, and why no step was taken."""
        logits = self.where.forward(x)
        self.whole = self.whole or len(x)
        batch = Batch(x, logits, self.where.forward, self.learned, self.whole, logits)
        batch = replace(batch, answer=self._answer.answer(batch).detach())
        if not bool(torch.isfinite(logits).all()):
            return batch.answer, None, NON_FINITE_LOGITS
        loss = self.objective(batch)
        if loss is None:
            return batch.answer, None, UNRELIABLE
        for group in self.optimizer.param_groups:
            group["lr"] = self.rule.rate(self.whole, self._has_batch_norms)
        if (skipped := self._descend(loss, batch)) is None:
            for part in self._upkeep:
                part.maintain(self.learned)
        return batch.answer, float(loss.detach()), skipped

    def _descend(self, loss: Tensor, batch: Batch) -> str | None:
        """One step down the loss; why none was taken."""
        return descend(loss, self.optimizer)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is learned."""
        return iter(self.learned.parameters)

    def reset(self) -> None:
        """Back to the source: parameters, moments, averages, memories, counters and random state."""
        self._back_to_source()
        for part in self._parts().values():
            part.reset()
        self.whole, self.num_steps, self.last = None, 0, None

    def _back_to_source(self) -> None:
        """Parameters and moments alone."""
        self.learned.put(self.learned.start)
        self.optimizer.state.clear()

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        return self.where.undo()

    def _parts(self) -> dict[str, Any]:
        """What has settings and state; a part that has several roles counts once."""
        named = {"objective": self.objective, "answer": self._answer}
        named |= {f"upkeep {i}": part for i, part in enumerate(self._upkeep)}
        first = {id(part): name for name, part in reversed(named.items())}
        return {name: part for name, part in named.items() if first[id(part)] == name}

    def settings(self) -> dict[str, Any]:
        """All hyper-parameters, with what None became: what must be the same for the same stream to teach the same."""
        parts = {name: part.settings() for name, part in self._parts().items()}
        return {"method": type(self).__name__, "where": self.where.settings(), "rule": self.rule.settings()} | parts

    def state_dict(self) -> dict[str, Any]:
        """What was learned and from where, moments, what the parts remember, counters, and the settings."""
        return {
            "config": self.settings(),
            "learned": self.learned.snapshot(),
            "start": [value.clone() for value in self.learned.start],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "whole": self.whole,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same settings.

        Raises:
            ConfigError: other settings, another model, or values that are not finite; nothing is changed.
        """
        if differ := differences(state["config"], self.settings()):
            raise ConfigError(f"this state is of another configuration ({differ}); use that one to resume")
        for values in (state["learned"], state["start"]):
            self.learned.check(values)
        self.learned.put(state["learned"])
        self.learned.start = [v.to(p.device, copy=True) for v, p in zip(state["start"], self.parameters(), strict=True)]
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for name, part in self._parts().items():
            part.load_state_dict(state["parts"][name], self.learned.device)
        self.whole, self.num_steps, self.last = state["whole"], state["num_steps"], None
