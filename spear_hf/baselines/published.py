"""Hyper-parameters as they were published, where they depend on the data set."""

import math
from collections.abc import Mapping
from typing import Any

from spear_hf.errors import ConfigError

BENCHMARKS = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "imagenet_vit": 1000}
"""name -> number of classes; "imagenet" is a ResNet-50 with batch norms, "imagenet_vit" a network with layer norms."""

_CIFAR: dict[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3}
_IMAGENET: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 2.5e-4}
_SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-3}

_TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "tent": {"cifar10": _CIFAR, "cifar100": _CIFAR, "imagenet": _IMAGENET, "imagenet_vit": _IMAGENET},
    "eta": {
        "cifar10": _CIFAR | {"margin": 0.4},
        "cifar100": _CIFAR | {"margin": 0.1},
        "imagenet": _IMAGENET | {"margin": 0.05},
        "imagenet_vit": _IMAGENET | {"margin": 0.05},
    },
}
_TABLE |= {
    method: {
        "cifar10": cifar,
        "cifar100": cifar,
        "imagenet": _IMAGENET | {"scale_lr": True},
        "imagenet_vit": _SGD | {"scale_lr": True},
    }
    for method, cifar in {"sar": _SGD | {"scale_lr": False}, "deyo": _CIFAR | {"scale_lr": False}}.items()
}
_TABLE["deyo"]["imagenet"]["margin"] = 0.3
_TABLE |= {
    "roid": {"cifar10": _CIFAR, "cifar100": _CIFAR, "imagenet": _IMAGENET, "imagenet_vit": _IMAGENET},
    "cmf": {
        "cifar10": _CIFAR | {"noise": 5e-3},
        "cifar100": _CIFAR | {"noise": 5e-3},
        "imagenet": {"optimizer": "sgd", "learning_rate": 2e-4, "noise": 2.5e-4},
        "imagenet_vit": _IMAGENET | {"noise": 5e-3},
    },
}
_COTTA = {"optimizer": "sgd", "learning_rate": 0.01, "nesterov": True, "confidence": 0.1, "restore": 0.001}
_TABLE |= {
    "buffer": {
        "cifar10": _CIFAR | {"alpha": 1e-4},
        "cifar100": _CIFAR | {"alpha": 1e-4},
        "imagenet": _IMAGENET | {"alpha": 1e-9},
        "imagenet_vit": _IMAGENET | {"alpha": 1e-2},
    },
    "cotta": {
        "cifar10": _CIFAR | {"confidence": 0.92, "restore": 0.01, "symmetric": False},
        "cifar100": _CIFAR | {"confidence": 0.72, "restore": 0.01, "symmetric": False},
        "imagenet": _COTTA | {"symmetric": True},
        "imagenet_vit": _COTTA | {"symmetric": True},
    },
    "rotta": dict.fromkeys(BENCHMARKS, _CIFAR),
}
_TABLE["eata"] = {
    name: row | {"strength": 1.0 if name.startswith("cifar") else 2000.0} for name, row in _TABLE["eta"].items()
}


def published(method: str, benchmark: str) -> dict[str, Any]:
    """Keyword arguments for METHODS[method] as its authors ran it, or else as a common collection ran it.

    >>> from spear_hf.baselines import published
    >>> published("eta", "cifar100")
    {'optimizer': 'adam', 'learning_rate': 0.001, 'margin': 0.1}

    Raises:
        ConfigError: an unknown benchmark, or a method without published values here (source and bn_adapt).
    """
    if method not in _TABLE or benchmark not in BENCHMARKS:
        raise ConfigError(
            f"nothing published is known of {method!r} on {benchmark!r}; allowed are {', '.join(_TABLE)} on "
            f"{', '.join(BENCHMARKS)}; give the hyper-parameters yourself"
        )
    return dict(_TABLE[method][benchmark])


def for_num_classes(num_classes: int, values: Mapping[int, float]) -> float:
    """The value that was published for the number of classes with the smallest ratio to `num_classes`.

    >>> from spear_hf.baselines.published import for_num_classes
    >>> for_num_classes(200, {10: 0.4, 100: 0.1, 1000: 0.05})
    0.1
    """
    return values[min(values, key=lambda k: abs(math.log(k / max(num_classes, 1))))]
