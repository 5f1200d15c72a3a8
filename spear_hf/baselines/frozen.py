"""The methods that learn nothing: the source as it is, and the source with mixed batch statistics."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.baselines.norms import ModelFlags
from spear_hf.config import differences
from spear_hf.errors import ConfigError
from spear_hf.steering.context import Moments, Steering, SteeringContext
from spear_hf.steering.hooks import register_hooks
from spear_hf.steering.mixing import mixed_statistics
from spear_hf.steering.moments import batch_statistics
from spear_hf.utils.batch import logits_of, validate_batch
from spear_hf.utils.distributed import BatchShard, ProcessGroup
from spear_hf.utils.model_inputs import arguments_of, images_and_further, with_one_row


class Source:
    """The pretrained model as it is; it never learns. It is put into evaluation mode; `unload` restores its flags.

    Args:
        model: the base.
        accelerator: under several processes each answers its slice of the global batch, which may be empty.

    >>> import timm, torch
    >>> from spear_hf.baselines import Source
    >>> Source(timm.create_model("test_resnet")).step(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(self, model: nn.Module, *, accelerator: Any = None) -> None:
        self.model = model
        self.processes = ProcessGroup(accelerator)
        self._flags = ModelFlags(model)
        model.eval()

    @torch.no_grad()
    def step(self, x: Tensor | Mapping[str, Any] | None = None, *, pixel_values: Tensor | None = None) -> Tensor:
        """The source's logits (B, K)."""
        images, further = images_and_further(x, pixel_values, {}, arguments_of(self.model))
        images, shard = validate_batch(images, self.processes, further)
        further = further if shard.local else with_one_row(further)
        return self.answer(images, shard, **further)[: shard.local]

    def answer(self, x: Tensor, shard: BatchShard, **further: Any) -> Tensor:
        """The logits of x; x is one black image on a process without images; `further` goes with it."""
        self.model.eval()  # train() may have been called since: no dropout, and no running statistics written
        return logits_of(self.model(x, **further))

    def reset(self) -> None:
        """Nothing to forget."""

    def unload(self) -> nn.Module:
        """The base, with its training flags as they came in."""
        self._flags.restore()
        return self.model

    def parameters(self) -> Iterator[nn.Parameter]:
        """None."""
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class UnbiasedStatistics:
    """Mixes the batch's variance divided by n - 1 rather than n, where n is the number of values of a channel.

    >>> import torch
    >>> from spear_hf.baselines.frozen import UnbiasedStatistics
    >>> norm, x = torch.nn.BatchNorm1d(1), torch.tensor([[4.0], [6.0]])
    >>> UnbiasedStatistics().moments("", x, norm, alpha=1.0, shard=None)
    (tensor([5.]), tensor([2.]))
    """

    def moments(self, layer: str, x: Tensor, norm: Any, alpha: float, shard: BatchShard | None) -> Moments | None:
        """Mixed mean and variance, (C,) each; None where a channel holds a single value."""
        found = batch_statistics(x, shard, norm.running_mean)
        if found is None:
            return None
        images = len(x) if shard is None else shard.total
        n = x[0].numel() // x.shape[1] * images
        return mixed_statistics(norm, found[0], found[1] * (n / (n - 1)), alpha)


class BnAdapt(Source):
    """BN-adapt: statistics (1 - alpha) source + alpha batch in every BatchNorm, Eq. 10 (Schneider et al. 2020).

    No buffer is written. A network without running statistics answers as the source. What other papers call "Norm" or
    "BN-1" is alpha 1, `published("bn_adapt", ...)`.

    Args:
        model: the base; hooks are registered on its BatchNorm layers until `unload`.
        alpha: in [0, 1].
        unbiased: mix the batch's unbiased variance, as a common collection does; by default the biased one, by which a
            BatchNorm normalises in training, as SPeaR mixes it.
        accelerator: under several processes the statistics are those of the global batch.

    Raises:
        ConfigError: an alpha outside [0, 1].

    >>> import timm, torch
    >>> from spear_hf.baselines import BnAdapt
    >>> BnAdapt(timm.create_model("test_resnet"), alpha=0.5).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self, model: nn.Module, alpha: float = 0.5, *, unbiased: bool = False, accelerator: Any = None
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha={alpha!r} is not allowed; it is in [0, 1]; the paper's value is 0.5")
        super().__init__(model, accelerator=accelerator)
        self.alpha, self.unbiased = alpha, unbiased
        self._steering = Steering()
        self._handles = register_hooks(model, (), self._steering)

    def answer(self, x: Tensor, shard: BatchShard, **further: Any) -> Tensor:
        """The logits of x under the statistics of the global batch."""
        statistics = UnbiasedStatistics() if self.unbiased else None
        with self._steering.within(context=SteeringContext({}, self.alpha, statistics, shard=shard)):
            return super().answer(x, shard, **further)

    def unload(self) -> nn.Module:
        """The base without the hooks."""
        for handle in self._handles:
            handle.remove()
        return super().unload()

    def state_dict(self) -> dict[str, Any]:
        """alpha and the kind of variance, which a resumed run must have too."""
        return {"alpha": self.alpha, "unbiased": self.unbiased}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if the run had another alpha or another kind of variance."""
        if differ := differences(state, self.state_dict()):
            raise ConfigError(f"this state is of another configuration ({differ}); use that")
