"""Tent: entropy minimisation over the affine parameters of the normalisation layers (Wang et al. 2021)."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.batch import admit, logits_of
from spear_hf.batch_stats import batch_norms
from spear_hf.collective import Processes
from spear_hf.errors import ConfigError, LaunchError
from spear_hf.objective import normalized_entropy


class Tent:
    """Every batch is normalised by its own statistics, and one Adam step lowers its mean entropy.

    Changes the base: gamma and beta of its batch norms (of its layer and group norms, where it has no batch norm) are
    learned in place, and running statistics are set aside. `reset` and `unload` put back what was there.

    Args:
        model: the base.
        learning_rate: of Adam.
        accelerator: more than one process is refused: the statistics of a slice are not those of the batch.
    """

    def __init__(self, model: nn.Module, learning_rate: float = 1e-3, *, accelerator: Any = None) -> None:
        self.processes = Processes(accelerator)
        if self.processes.count > 1:
            raise LaunchError(f"Tent learns from one process, {self.processes.count} run; start one, or use Spear")
        found = [m for _, m in batch_norms(model) if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.norms = found or [m for m in model.modules() if isinstance(m, (nn.LayerNorm, nn.GroupNorm))]
        self.learned = [p for m in self.norms for p in (m.weight, m.bias) if isinstance(p, nn.Parameter)]
        if not self.learned:
            raise ConfigError(
                f"{type(model).__name__} has no normalisation layer with gamma and beta to learn; use Spear"
            )
        self.model = model
        self._statistics = [(m, m.running_mean, m.running_var) for m in found]
        self._flags = [(p, p.requires_grad) for p in model.parameters()]
        self._training = {name: m.training for name, m in model.named_modules()}
        self._start = [p.detach().clone() for p in self.learned]
        model.eval().requires_grad_(False)
        for parameter in self.learned:
            parameter.requires_grad_(True)
        self._handles = [m.register_forward_pre_hook(_BatchOrSource(m)) for m in found]
        self.optimizer = torch.optim.Adam(self.learned, lr=learning_rate)

    def step(self, x: Tensor) -> Tensor:
        """The logits (B, K) under the batch's statistics, then one step down their mean entropy."""
        with torch.inference_mode(False), torch.enable_grad():
            x = x.clone() if isinstance(x, Tensor) and x.is_inference() else x
            x, _ = admit(x, self.processes)
            logits = logits_of(self.model(x))
            normalized_entropy(logits).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return logits.detach()

    @torch.no_grad()
    def reset(self) -> None:
        """Back to the source's gamma and beta; moments forgotten."""
        for parameter, value in zip(self.learned, self._start, strict=True):
            parameter.copy_(value)
        self.optimizer.state.clear()

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        self.reset()
        for handle in self._handles:
            handle.remove()
        for module, mean, variance in self._statistics:
            module.running_mean, module.running_var = mean, variance
        for parameter, flag in self._flags:
            parameter.requires_grad_(flag)
        for name, module in self.model.named_modules():
            module.training = self._training[name]
        return self.model

    def parameters(self) -> Iterator[nn.Parameter]:
        """gamma and beta of the normalisation layers."""
        return iter(self.learned)

    def state_dict(self) -> dict[str, Any]:
        """What was learned, and Adam's moments."""
        learned = [p.detach().clone() for p in self.learned]
        return {"learned": learned, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; ConfigError, with nothing changed, where it is of another model or rate."""
        shapes = [tuple(value.shape) for value in state["learned"]]
        rates = [group["lr"] for group in (*state["optimizer"]["param_groups"], *self.optimizer.param_groups)]
        if shapes != [tuple(p.shape) for p in self.learned] or len(set(rates)) > 1:
            raise ConfigError(
                f"this state is of another configuration (learning rates {rates}); use that one to resume"
            )
        for parameter, value in zip(self.learned, state["learned"], strict=True):
            parameter.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


class _BatchOrSource:
    """Forward pre-hook: without running statistics a norm takes the batch's, where its channels hold several values."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        self.source = norm.running_mean, norm.running_var

    def __call__(self, module: Any, args: tuple[Any, ...]) -> None:
        x: Tensor = args[0]
        alone = x.numel() <= x.shape[1]
        module.running_mean, module.running_var = self.source if alone else (None, None)
