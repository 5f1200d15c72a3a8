"""Learner: the online learner of every rival. It answers a batch, asks an objective for a loss, and lowers the loss.

What to adapt and what to minimise are two objects that compose, so that every objective can be tried everywhere:

    METHODS["roid"](model)                                      # ROID, on gamma and beta of the normalisation layers
    METHODS["roid"](model, where="rsp", config=SpearConfig())   # the same objective on RSPs
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.learner_options import LearnerOptions, adapt, given
from spear_hf.baselines.losses import Answer, Batch, Objective, OwnLogits, Upkeep
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.config import differences
from spear_hf.errors import ConfigError, LaunchError
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.optimize import descend
from spear_hf.learning.record import NON_FINITE_LOGITS, UNRELIABLE, StepRecord
from spear_hf.utils.batch import validate_batch
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.model_inputs import images_alone


class Learner:
    """Answers each batch, then takes one step down an objective; satisfies TTAMethod.

    Changes the base in place until `unload`: hooks, flags, and the adapted parameters.

    Args:
        model: any image classifier.
        objective: what is minimised.
        optimizer_config: the optimizer that the method was published with. RSPs and buffer layers bring an optimizer of
            their own instead. Options such as `learning_rate` change single fields of either.
        answer: what is answered; the logits by default.
        upkeep: what follows each step, in this order.
        options: see LearnerOptions.

    Attributes:
        last: the StepRecord of the latest step, or None.

    Raises:
        ConfigError, LaunchError: nothing is changed.

    >>> import timm, torch
    >>> from spear_hf.baselines.learner import Learner
    >>> from spear_hf.baselines.optimizer_config import OptimizerConfig
    >>> from spear_hf.baselines.tent import MeanEntropy
    >>> learner = Learner(timm.create_model("test_resnet"), MeanEntropy(), OptimizerConfig("adam", 1e-3))
    >>> learner.step(torch.randn(2, 3, 32, 32)).shape, learner.last.adapted
    (torch.Size([2, 1000]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer_config: OptimizerConfig,
        *,
        answer: Answer | None = None,
        upkeep: Sequence[Upkeep] = (),
        **options: Unpack[LearnerOptions],
    ) -> None:
        options = given(options)
        self.processes = ProcessGroup(options.get("accelerator"))
        if self.processes.count > 1:
            raise LaunchError(
                f"{type(self).__name__} learns from one process, {self.processes.count} run; start one, or use Spear"
            )
        chosen: dict[str, Any] = {f.name: options[f.name] for f in fields(OptimizerConfig) if f.name in options}
        replace(optimizer_config, **chosen)  # raises before anything is changed
        self.adapted = adapt(
            model, options.get("where") or "norm", skip=options.get("skip"), config=options.get("config")
        )
        self.model: nn.Module = getattr(self.adapted, "model", model)
        self.learned = self.adapted.learned
        self.optimizer_config = replace(self.adapted.optimizer_config or optimizer_config, **chosen)
        self.optimizer = self.optimizer_config.make(self.learned.parameters)
        self.objective = objective
        self._answer = answer or OwnLogits()
        self._upkeep = list(upkeep)
        self._is_transformer = self.adapted.is_transformer
        self.nominal_batch_size: int | None = None  # the first batch's
        self.num_steps = 0
        self.last: StepRecord | None = None

    def step(self, x: Tensor | Mapping[str, Any] | None = None, *, pixel_values: Tensor | None = None) -> Tensor:
        """Answer a batch with what earlier batches taught, then learn from it.

        Args:
            x: (B, C, H, W) floats, as the model's processor makes them, or what the processor returns.

        Returns:
            (B, K) logits, detached.

        Raises:
            InputError: empty, not float, or not finite; nothing was learned.
        """
        images = images_alone(x, pixel_values, getattr(self.adapted, "model", None), "this method")
        with torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if isinstance(images, Tensor) and images.is_inference() else images
            images, _ = validate_batch(images, self.processes)
            answer, loss, skipped = self._answer_and_learn(images)
        entropy = float(normalized_entropy(answer).mean())
        self.last = StepRecord(self.num_steps, len(images), entropy, skipped is None, skipped, loss=loss)
        self.num_steps += 1
        return answer

    def _answer_and_learn(self, x: Tensor) -> tuple[Tensor, float | None, str | None]:
        """The answer, the loss, and why no step was taken."""
        logits = self.adapted.forward(x)
        self.nominal_batch_size = self.nominal_batch_size or len(x)
        batch = Batch(x, logits, self.adapted.forward, self.learned, self.nominal_batch_size, logits)
        batch = replace(batch, answer=self._answer.answer(batch).detach())
        if not bool(torch.isfinite(logits).all()):
            return batch.answer, None, NON_FINITE_LOGITS
        loss = self.objective(batch)
        if loss is None:
            return batch.answer, None, UNRELIABLE
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer_config.rate(self.nominal_batch_size, self._is_transformer)
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
        self.learned.put(self.learned.start)
        self.optimizer.state.clear()
        for component in self._components().values():
            component.reset()
        self.nominal_batch_size, self.num_steps, self.last = None, 0, None

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        return self.adapted.undo()

    def _components(self) -> dict[str, Any]:
        """name -> objective, answer and upkeep; an object that has several of these roles counts once."""
        named = {"objective": self.objective, "answer": self._answer}
        named |= {f"upkeep {i}": upkeep for i, upkeep in enumerate(self._upkeep)}
        first = {id(component): name for name, component in reversed(named.items())}
        return {name: component for name, component in named.items() if first[id(component)] == name}

    def settings(self) -> dict[str, Any]:
        """All hyper-parameters with the values in force: the same settings learn the same from the same stream."""
        components = {name: component.settings() for name, component in self._components().items()}
        learner = {"method": type(self).__name__, "where": self.adapted.settings()}
        return learner | {"rule": self.optimizer_config.settings()} | components

    def state_dict(self) -> dict[str, Any]:
        """Learned values, the source's, moments, the state of objective, answer and upkeep, counters, settings."""
        return {
            "config": self.settings(),
            "learned": self.learned.snapshot(),
            "start": [value.clone() for value in self.learned.start],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "parts": {name: component.state_dict() for name, component in self._components().items()},
            "whole": self.nominal_batch_size,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same settings.

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
        for name, component in self._components().items():
            component.load_state_dict(state["parts"][name], self.learned.device)
        self.nominal_batch_size, self.num_steps, self.last = state["whole"], state["num_steps"], None
