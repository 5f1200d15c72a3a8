"""Arithmetic on adapters: a vector space whose origin is the identity RSP, with coordinates (gamma - 1, beta).

A state maps "<boundary key>.gamma" and "<boundary key>.beta" to tensors (C,), as `SpearModel.snapshot` returns it.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spear_hf.errors import ConfigError


def weighted_state(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """gamma = 1 + sum_i w_i (gamma_i - 1) and beta = sum_i w_i beta_i.

    A state without an RSP that another state has counts as the identity there. Sums are computed in fp64, so that one
    state with weight 1 comes back bit for bit.

    >>> import torch
    >>> from spear_hf.adapters.arithmetic import weighted_state
    >>> state = {"0.gamma": torch.tensor([2.0]), "0.beta": torch.tensor([4.0])}
    >>> weighted_state([state], [0.5])
    {'0.gamma': tensor([1.5000]), '0.beta': tensor([2.])}
    """
    total: dict[str, Tensor] = {}
    for state, weight in zip(states, weights, strict=True):
        for key, value in state.items():
            neutral = 1.0 if key.endswith(".gamma") else 0.0
            start = total.get(key, torch.full_like(value, neutral, dtype=torch.float64))
            total[key] = start + weight * (value.double() - neutral)
    return {key: value.float() for key, value in total.items()}


def deviations(state: Mapping[str, Tensor]) -> tuple[float, float]:
    """(||gamma - 1||, ||beta||) over all RSPs of a state, the distance from the identity.

    >>> import torch
    >>> from spear_hf.adapters.arithmetic import deviations
    >>> deviations({"0.gamma": torch.tensor([1.0, 4.0]), "0.beta": torch.tensor([0.0, 0.0])})
    (3.0, 0.0)
    """
    gamma = sum(float((v.double() - 1).square().sum()) for k, v in state.items() if k.endswith(".gamma"))
    beta = sum(float(v.double().square().sum()) for k, v in state.items() if k.endswith(".beta"))
    return gamma**0.5, beta**0.5


def check_weights(weights: Sequence[float], count: int = 1) -> None:
    """Raise ConfigError unless `weights` are `count` >= 1 finite numbers.

    >>> from spear_hf.adapters.arithmetic import check_weights
    >>> check_weights([0.5, 0.5], count=2)
    """
    numbers = all(isinstance(w, (int, float)) and not isinstance(w, bool) and math.isfinite(w) for w in weights)
    if not numbers or len(weights) != count or count < 1:
        raise ConfigError(f"weights {list(weights)} are not allowed; give a finite number for each of {count} adapters")
