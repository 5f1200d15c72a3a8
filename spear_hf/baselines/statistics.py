"""Batch norms under the statistics of the batch alone, by hooks that leave every buffer as it is."""

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.steering.mixing import batch_norms


def use_batch_statistics(model: nn.Module) -> list[RemovableHandle]:
    """The handles of hooks that have every BatchNorm of `model` normalise by its batch, with gradients through it.

    A layer whose channels hold one value each takes the source's statistics: one value has no variance. Frozen batch
    norms (torchvision's and timm's, whose forward knows no batch statistics) stay as they are.
    """
    norms = [m for _, m in batch_norms(model) if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [handle for norm in norms for handle in _BatchStatistics().register(norm)]


class _BatchStatistics:
    """Sets the running statistics of one layer aside during its forward: without any, torch takes the batch's."""

    def __init__(self) -> None:
        self.aside: tuple[Any, Any] | None = None

    def register(self, norm: nn.Module) -> list[RemovableHandle]:
        after = norm.register_forward_hook(self.after, prepend=True, always_call=True)
        return [norm.register_forward_pre_hook(self.before), after]

    def before(self, module: Any, args: tuple[Any, ...]) -> None:
        x: Tensor = args[0]
        if x.numel() > x.shape[1] and self.aside is None:
            self.aside = module.running_mean, module.running_var
            module.running_mean = module.running_var = None

    def after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self.aside is not None:
            module.running_mean, module.running_var = self.aside
            self.aside = None
