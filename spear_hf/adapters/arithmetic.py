"""Arithmetic on adapters: an RSP is a point (gamma - 1, beta) around the identity; points can be scaled and averaged.

A state maps "<boundary key>.gamma" and "<boundary key>.beta" to (C,), as `SpearModel.snapshot` gives it.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spear_hf.errors import ConfigError


def weighted_state(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """gamma = 1 + sum_i w_i (gamma_i - 1) and beta = sum_i w_i beta_i.

    A state without an RSP that another has counts as the identity there. Sums are taken in fp64, so that the weight 1
    gives a state back bit for bit.
    """
    total: dict[str, Tensor] = {}
    for state, weight in zip(states, weights, strict=True):
        for key, value in state.items():
            neutral = 1.0 if key.endswith(".gamma") else 0.0
            start = total.get(key, torch.full_like(value, neutral, dtype=torch.float64))
            total[key] = start + weight * (value.double() - neutral)
    return {key: value.float() for key, value in total.items()}


def deviations(state: Mapping[str, Tensor]) -> tuple[float, float]:
    """(||gamma - 1||, ||beta||) over all RSPs of a state: how far it is from the identity."""
    gamma = sum(float((v.double() - 1).square().sum()) for k, v in state.items() if k.endswith(".gamma"))
    beta = sum(float(v.double().square().sum()) for k, v in state.items() if k.endswith(".beta"))
    return gamma**0.5, beta**0.5


def check_weights(weights: Sequence[float], count: int = 1) -> None:
    """Raise ConfigError unless there are `count` >= 1 finite numbers."""
    numbers = all(isinstance(w, (int, float)) and not isinstance(w, bool) and math.isfinite(w) for w in weights)
    if not numbers or len(weights) != count or count < 1:
        raise ConfigError(f"weights {list(weights)} are not allowed; give a finite number for each of {count} adapters")
