"""Spear, the online learner: predict, gate, update, record. And TTAMethod, the promise that every method here makes.

`step` is the only thing that learns. It answers with what earlier batches taught, and only then learns from this one.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError, InputError, SpearError
from spear_hf.model import SpearModel
from spear_hf.objective import Losses, normalized_entropy, should_adapt, spear_loss

CONFIDENT = "confident: mean entropy below tau"
NON_FINITE_LOGITS = "the model's logits are not finite"
NON_FINITE_GRADIENT = "the gradient is not finite"


@runtime_checkable
class TTAMethod(Protocol):
    """What every test-time adaptation method here can do."""

    def step(self, x: Tensor) -> Tensor:
        """Answer the batch with logits (B, K), then learn from it; labels never come near."""
        ...

    def reset(self) -> None:
        """Forget everything learned: the same stream after it gives the same bits."""
        ...

    def unload(self) -> nn.Module:
        """The base model, bit for bit as it came in."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is learned; empty where nothing is."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; raises, with nothing changed, where it does not fit."""
        ...


@dataclass(frozen=True)
class StepRecord:
    """What one step did.

    Args:
        step: how many batches came before.
        batch_size: B.
        entropy: mean normalised entropy of the answer, in [0, 1].
        adapted: whether the RSPs moved.
        skipped: why they did not, or did not on every one of the `steps`; None where all went through.
        entropy_loss, diversity_loss, anchor_loss, loss: Eqs. 7, 8, 9 and 11 at the first step; None where it was skipped.
        gamma_deviation, beta_deviation: ||gamma - 1|| and ||beta|| over all RSPs, after the step.
        single_value_norms: batch-norm calls answered with the source's statistics, since a channel held one value.
    """

    step: int
    batch_size: int
    entropy: float
    adapted: bool
    skipped: str | None
    entropy_loss: float | None
    diversity_loss: float | None
    anchor_loss: float | None
    loss: float | None
    gamma_deviation: float
    beta_deviation: float
    single_value_norms: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def logits_of(output: Any) -> Tensor:
    """The (B, K) logits in what a classifier returns: a tensor, or a transformers ModelOutput."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the model returned {shape}, a classifier returns (B, K) logits or an output with .logits")
    return logits


def check_images(x: Tensor) -> None:
    """Raise InputError for a batch that must not be answered or learned from; (B, ...) floats, B >= 1, all finite."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"pixel_values are {kind}, allowed is a float tensor (B, C, H, W); run the model's processor first")
    if x.dim() < 2 or len(x) == 0:
        raise InputError(f"pixel_values have shape {tuple(x.shape)}, allowed is (B, C, H, W) with B >= 1; skip empty batches")
    if not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
        raise InputError(f"pixel_values hold NaN or infinity in images {bad} of this batch; drop them, nothing was learned")


class Spear:
    """SPeaR's online learner (section 3, Eqs. 6 to 11) for one SpearModel.

    Args:
        model: from `get_spear_model`; its active adapter is what learns.
        overrides: any SpearConfig field of the objective or the optimizer, in place of the adapter's own configuration
            (learning_rate=..., tau=...). Placement and alpha belong to the adapter and cannot be overridden here.

    Attributes:
        last: the StepRecord of the latest step, or None.
    """

    def __init__(self, model: SpearModel, **overrides: Any) -> None:
        if model.active_adapter is None:
            raise ConfigError("no adapter is active, so there is nothing to learn; call model.set_adapter(name) first")
        for name in ("boundaries", "num_groups", "stem", "alpha"):
            if name in overrides:
                raise ConfigError(f"{name} belongs to the adapter; give it to get_spear_model(model, SpearConfig({name}=...))")
        self.model = model
        self.adapter_name = model.active_adapter
        own = model.peft_config[self.adapter_name]
        self.config = SpearConfig.from_dict(own.to_dict() | overrides)
        self.optimizer = torch.optim.Adam(
            list(self.parameters()),
            lr=self.config.learning_rate,
            betas=(self.config.adam_beta1, self.config.adam_beta2),
        )
        self._start = model.snapshot(self.adapter_name)
        self.num_steps = 0
        self.last: StepRecord | None = None

    def step(self, x: Tensor) -> Tensor:
        """Answer a batch with what earlier batches taught, then learn from it.

        Args:
            x: (B, C, H, W) floats, as the model's processor makes them.

        Returns:
            (B, K) logits, detached: the answer, before this batch was learned from.

        Raises:
            InputError: empty, not float, or not finite; nothing was learned.
        """
        with torch.inference_mode(False), torch.enable_grad():
            x = x.clone() if isinstance(x, Tensor) and x.is_inference() else x
            check_images(x)
            self._switched_on()
            before = self._single_value_norms()
            logits = logits_of(self.model(x))
            answer = logits.detach()
            entropy = float(normalized_entropy(answer).mean())
            first, skipped = self._learn(x, logits, entropy)
        self.last = self._record(len(x), entropy, first, skipped, self._single_value_norms() - before)
        self.num_steps += 1
        return answer

    def _learn(self, x: Tensor, logits: Tensor, entropy: float) -> tuple[Losses | None, str | None]:
        """The `steps` updates of one batch: the losses of the first, and why one was not made."""
        if entropy != entropy:
            return None, NON_FINITE_LOGITS
        if self.config.hard_gate and not should_adapt(torch.tensor(entropy), self.config.tau):
            return None, CONFIDENT
        first: Losses | None = None
        for k in range(self.config.steps):
            if k > 0:
                logits = logits_of(self.model(x))
            losses = spear_loss(logits, self.model.rsps(self.adapter_name), self.config)
            first = first or Losses(*(value.detach() for value in losses))
            if not self._update(losses.total):
                return first, NON_FINITE_GRADIENT
        return first, None

    def _update(self, loss: Tensor) -> bool:
        """One Adam step on the RSPs; False, with nothing moved, where the gradient is not finite."""
        parameters = list(self.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        if not all(bool(torch.isfinite(g).all()) for g in gradients):
            return False
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return True

    def _switched_on(self) -> None:
        if self.adapter_name not in self.model.active_adapters or self.model.is_disabled:
            raise ConfigError(
                f"adapter {self.adapter_name!r} is not active, so this step could not learn it; "
                f"call model.set_adapter({self.adapter_name!r}), and step outside disable_adapter()"
            )

    def _single_value_norms(self) -> int:
        return self.model.single_value_norms

    @torch.no_grad()
    def _record(self, size: int, entropy: float, first: Losses | None, skipped: str | None, norms: int) -> StepRecord:
        rsps = [rsp for several in self.model.rsps(self.adapter_name).values() for rsp in several]
        gamma = sum(float((rsp.gamma - 1).square().sum()) for rsp in rsps) ** 0.5
        beta = sum(float(rsp.beta.square().sum()) for rsp in rsps) ** 0.5
        record = StepRecord(
            self.num_steps, size, entropy, False, skipped, None, None, None, None, gamma, beta, norms
        )
        if first is None:
            return record
        parts = {"entropy_loss": first.entropy, "diversity_loss": first.diversity, "anchor_loss": first.anchor}
        values = {name: float(value) for name, value in parts.items()} | {"loss": float(first.total)}
        return replace(record, adapted=skipped is None, **values)

    def parameters(self) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP that learns."""
        return self.model.adapter_parameters(self.adapter_name)

    def reset(self) -> None:
        """Back to the state at construction (the identity, or the adapter that was loaded): parameters, moments, counters."""
        self.model.restore(self._start, self.adapter_name)
        self.optimizer.state.clear()
        self.num_steps = 0
        self.last = None

    def unload(self) -> nn.Module:
        """The base model, bit for bit as it came in."""
        return self.model.unload()

    def state_dict(self) -> dict[str, Any]:
        """RSPs, Adam's moments, counters and the configuration they belong to."""
        return {
            "config": self.config.to_dict(),
            "rsp": self.model.snapshot(self.adapter_name),
            "start": {key: value.clone() for key, value in self._start.items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same configuration and RSPs.

        Raises:
            SpearError: another configuration, other RSPs, or values that are not finite; nothing is changed.
        """
        if state["config"] != self.config.to_dict():
            mine = self.config.to_dict()
            differ = [f"{k}: {v!r} here {mine.get(k)!r}" for k, v in state["config"].items() if mine.get(k) != v]
            raise ConfigError(f"this state was learned with another configuration ({'; '.join(differ)}); use that one to resume")
        if not all(bool(torch.isfinite(value).all()) for value in state["rsp"].values()):
            raise SpearError("this state holds values that are not finite; resume from an earlier one")
        self.model.restore(state["rsp"], self.adapter_name)
        self._start = {key: value.clone() for key, value in state["start"].items()}
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.num_steps = state["num_steps"]
        self.last = None
