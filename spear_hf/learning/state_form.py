"""What the entries of a saved state may be: one out of its range would fail, or turn answers into NaN, steps later."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from spear_hf.errors import CheckpointError

LARGEST = 1e18  # whose square is finite in float32
Rule = Callable[[Any], str]
"""What is allowed, in words, where a value is not; else empty."""


def check_form(state: Mapping[str, Any], rules: Sequence[tuple[str, Rule]] | None = None) -> None:
    """Raise CheckpointError, which names the entry and what is allowed, unless all entries of a state may be.

    Args:
        state: of a stream, or of something that has its own rules.
        rules: pattern of a dotted path, and what is allowed there; None is those of a stream. No rule allows anything.

    >>> import torch
    >>> check_form({"num_steps": 3, "seen": {"mean": torch.tensor([0.2, 0.8]), "weight": 0.5}})
    >>> check_form({"seen": {"weight": 1.5}})
    Traceback (most recent call last):
    spear_hf.errors.CheckpointError: this state's seen.weight is 1.5, allowed is a number in [0, 1]; resume from one ...
    """
    for path, value in _leaves(state):
        rule = next(
            (rule for pattern, rule in (_RULES if rules is None else rules) if re.fullmatch(pattern, path)), None
        )
        if rule is not None and (allowed := rule(value)):
            raise _refusal(path, value, allowed)
    for names in _EQUALLY_LONG:
        sizes = {path: value.shape[-1] for path, value in _leaves(state) if path in names and isinstance(value, Tensor)}
        if len(set(sizes.values())) > 1:
            raise CheckpointError(f"this state's parts are of different sizes ({sizes}); resume from one that is whole")


def check_options(options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless a parameter group of an optimizer has what its own has, of the same kinds."""
    for name, mine in own.items():
        path, value = f"optimizer.{name}", options.get(name)
        if name == "params" or name not in options or isinstance(mine, Tensor):
            continue
        if isinstance(mine, tuple):
            rule, values = number(0, 1), list(value) if isinstance(value, (list, tuple)) else [None]
            if len(values) != len(mine) or any(map(rule, values)):
                raise _refusal(path, value, f"{len(mine)} numbers in [0, 1]")
        elif type(mine) in (int, float):
            if allowed := number(0, LARGEST)(value):
                raise _refusal(path, value, allowed)
        elif type(value) is not type(mine) or value != mine:
            raise _refusal(path, value, repr(mine))


def number(low: float, high: float, *, whole: bool = False) -> Rule:
    """The rule of a number in [low, high].

    >>> number(0, 1)(2), number(0, 9, whole=True)(2)
    ('a number in [0, 1]', '')
    """

    def rule(value: Any) -> str:
        fits = type(value) is int or (type(value) is float and not whole)
        text = f"a {'whole ' if whole else ''}number in [{low:g}, {high:g}]"
        return "" if fits and low <= value <= high else text

    return rule


def tensor(*shape: int | None, low: float = -LARGEST, high: float = LARGEST, optional: bool = True) -> Rule:
    """The rule of floats in [low, high] of this shape; None is any size, at least 1. No shape is any shape.

    >>> import torch
    >>> tensor(2, low=0)(torch.tensor([1.0, -1.0]))
    'floats (2) in [0, 1e+18], or None'
    """

    def rule(value: Any) -> str:
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        text = f"floats{f' ({sizes})' if shape else ''} in [{low:g}, {high:g}]{', or None' if optional else ''}"
        if value is None:
            return "" if optional else text
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return text
        wanted = [found if size is None and found else size for size, found in zip(shape, value.shape, strict=False)]
        if shape and (value.dim() != len(shape) or list(value.shape) != wanted):
            return text
        return "" if bool(((value >= low) & (value <= high)).all()) else text

    return rule


def step_count(value: Any) -> str:
    """The rule of how many steps an optimizer has taken: a whole number, or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value)
    fits = type(value) in (int, float) and 0 <= value <= LARGEST and value == math.floor(value)
    return "" if fits else "a whole number of steps"


def choice(*allowed: Any) -> Rule:
    """The rule of one of a few values."""
    return lambda value: "" if any(value is each for each in allowed) else " or ".join(map(str, allowed))


_PART = tensor(None, low=0, high=1)
_RULES: list[tuple[str, Rule]] = [
    (r"num_steps|trial\.count|skew\.seen|jump\.batches", number(0, 2**53, whole=True)),
    (r"(rsp|start)(\..*)?", tensor(optional=False)),
    (r"optimizer\.(state\.\d+\.)?step", step_count),
    (r"optimizer\.(state\.\d+\.)?exp_avg", tensor(optional=False)),
    (r"optimizer\.(state\.\d+\.)?exp_avg_sq", tensor(low=0, optional=False)),
    (r"statistics\.mean", tensor(None)),
    (r"statistics\.variance", tensor(None, low=0)),
    (r"statistics\.weight|trial\.shares|skew\.mean|seen\.mean", _PART),
    (r"trial\.means", tensor(2, None)),
    (r"jump\.usual\..*", number(-LARGEST, LARGEST)),
    (r"skew\.before", tensor(None, None, low=0, high=1)),
    (r"skew\.sums", tensor(2, 4, low=-1.0, optional=False)),
    (r"skew\.is_of_few", choice(None, True, False)),
    (r"seen\.weight", number(0, 1)),
]
_EQUALLY_LONG = (("skew.before", "skew.mean", "seen.mean"), ("statistics.weight", "trial.shares"))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def _refusal(path: str, value: Any, allowed: str) -> CheckpointError:
    shown = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:40]
    return CheckpointError(
        f"this state's {path} is {shown}, allowed is {allowed}; resume from one that this version has saved"
    )
