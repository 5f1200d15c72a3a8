"""Flags: what evaluation mode and freezing change about a model, and its undo."""

from torch import nn


class Flags:
    """The training flag of every module, and requires_grad and gradient of every parameter, as they came in."""

    def __init__(self, model: nn.Module) -> None:
        self._training = [(m, m.training) for m in model.modules()]
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]

    def restore(self) -> None:
        """Put them back."""
        for module, training in self._training:
            module.training = training
        for parameter, requires_grad, gradient in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
