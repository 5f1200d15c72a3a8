"""Boundary rules for architectures that the search does not know: a decorated function per class."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from spear_hf.boundaries.boundary import Boundary

BoundaryRule = Callable[[nn.Module, int | None], list[Boundary]]

RULES: dict[type[nn.Module] | str, BoundaryRule] = {}
"""What users registered: a class, or a class name where importing the class is not wanted, and its rule."""


def boundary_rule(architecture: type[nn.Module] | str) -> Callable[[BoundaryRule], BoundaryRule]:
    """Register `rule(model, num_groups) -> list[Boundary]` for a class and its subclasses; a later rule replaces it.

    `channels` may stay 0: the probe fills it and `channel_axis` in. What a rule returns is verified like any other.
    """

    def register(rule: BoundaryRule) -> BoundaryRule:
        RULES[architecture] = rule
        return rule

    return register


def rule_for(model: nn.Module) -> BoundaryRule | None:
    """The rule of the closest class in `model`'s ancestry, by class or by name."""
    for kind in type(model).__mro__:
        rule = RULES.get(kind) or RULES.get(kind.__name__)
        if rule is not None:
            return rule
    return None
