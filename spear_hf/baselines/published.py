"""Hyper-parameters as they were published, by method and benchmark, each with the file it was read from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spear_hf.errors import ConfigError

BENCHMARKS = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "imagenet_gn": 1000, "imagenet_vit": 1000}
"""name -> number of classes; "imagenet" is a ResNet-50 with batch norms, "imagenet_gn" one with group norms,
"imagenet_vit" a network with layer norms."""


@dataclass(frozen=True)
class PublishedRow:
    """Hyper-parameters of one method, as one repository has them.

    Args:
        method: a name in METHODS.
        benchmarks: names in BENCHMARKS, with spaces.
        file: the repository and the files that were read.
        settings: keyword arguments for METHODS[method].
        up_to_batch: batch size -> what else holds for batches up to this size.

    >>> from spear_hf.baselines.published import PublishedRow
    >>> row = PublishedRow("bn_adapt", "cifar10", "a/b: c.yaml", {"alpha": 1.0}, {1: {"alpha": 0.1}})
    >>> row.at(batch_size=1)
    {'alpha': 0.1}
    """

    method: str
    benchmarks: str
    file: str
    settings: Mapping[str, Any]
    up_to_batch: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def at(self, batch_size: int | None) -> dict[str, Any]:
        """The keyword arguments for batches of this size; None is large."""
        sizes = [size for size in self.up_to_batch if batch_size is not None and batch_size <= size]
        return dict(self.settings) | dict(self.up_to_batch[min(sizes)] if sizes else {})


def published(method: str, benchmark: str, *, batch_size: int | None = None, file: str | None = None) -> dict[str, Any]:
    """Keyword arguments for METHODS[method] as its authors ran it, or else as a common collection ran it.

    They are those of the code where code and paper differ: ROID's and CMF's prior multiplies logits, SAR's momentum
    outlives a recovery. The classes' own defaults are the paper's.

    Args:
        method: a name in METHODS.
        benchmark: a name in BENCHMARKS.
        batch_size: buffer and bn_adapt have other values for small batches; None takes those for large ones. The rates
            that SAR's and DeYO's scripts scale by the batch size are scaled by the method itself (`scale_lr`).
        file: part of the `file` of another row of `published_rows`; None takes the first row.

    >>> from spear_hf.baselines import published
    >>> published("eta", "cifar100")
    {'optimizer': 'adam', 'learning_rate': 0.001, 'margin': 0.1}
    >>> published("tent", "imagenet", file="EATA: main.py")
    {'optimizer': 'sgd', 'learning_rate': 0.00025}

    Raises:
        ConfigError: an unknown benchmark, a method without published values here (source), or no row of that file.
    """
    rows = published_rows(method, benchmark)
    found = [row for row in rows if file is None or file in row.file]
    if not found:
        read = "; ".join(row.file for row in rows)
        raise ConfigError(f"no row of {method!r} on {benchmark!r} was read from {file!r}; rows were read from {read}")
    return found[0].at(batch_size)


def published_rows(method: str, benchmark: str) -> list[PublishedRow]:
    """Every row of a method on a benchmark, the one that `published` takes first.

    >>> from spear_hf.baselines.published import published_rows
    >>> [row.file for row in published_rows("rotta", "cifar10")]
    ['BIT-DA/RoTTA: configs/adapter/rotta.yaml']

    Raises:
        ConfigError: there is none.
    """
    rows = [row for row in _ROWS if row.method == method and benchmark in row.benchmarks.split()]
    if not rows:
        known = ", ".join(dict.fromkeys(row.method for row in _ROWS))
        raise ConfigError(
            f"nothing published is known of {method!r} on {benchmark!r}; allowed are {known} on "
            f"{', '.join(BENCHMARKS)}; give the hyper-parameters yourself"
        )
    return rows


def for_num_classes(num_classes: int, values: Mapping[int, float]) -> float:
    """The value that was published for the number of classes with the smallest ratio to `num_classes`.

    >>> from spear_hf.baselines.published import for_num_classes
    >>> for_num_classes(200, {10: 0.4, 100: 0.1, 1000: 0.05})
    0.1
    """
    return values[min(values, key=lambda k: abs(math.log(k / max(num_classes, 1))))]


# --- the rows --------------------------------------------------------------------------------------------------------

_ADAM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3}
_SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 2.5e-4}
_NESTEROV = _SGD | {"nesterov": True}  # conf.py of the collection, and of what was made from it, has it for every SGD
_SCALED = _SGD | {"scale_lr": True}
_VIT = _SCALED | {"learning_rate": 1e-3}
_ETA: dict[str, Any] = {"margin": 0.05}
_EATA: dict[str, Any] = _ETA | {"strength": 2000.0}
_ROID: dict[str, Any] = {"prior": "logits"}
_CMF: dict[str, Any] = _ROID | {"noise": 5e-3}
_CMF_RESNET = _NESTEROV | _CMF | {"learning_rate": 2e-4}
# Only SAM's own state is restored in a recovery, and the momentum is in the optimizer inside of it.
_SAR: dict[str, Any] = {"keep_momentum": True}
_SAR_FIXED = _SGD | _SAR | {"learning_rate": 1e-3, "scale_lr": False}
_DEYO: dict[str, Any] = {"margin": 0.2}
_DEYO_FIXED = _DEYO | {"scale_lr": False}
_BUFFER = _ADAM | {"alpha": 1e-4, "stages": (1,)}
_BUFFER_100 = _BUFFER | {"stages": (1, 2), "learn_scales": False}
_SMALL: dict[str, Any] = {"alpha": 1e-5}
_COTTA = _ADAM | {"restore": 0.01, "symmetric": False}
_COTTA_SGD = _NESTEROV | {"learning_rate": 0.01, "confidence": 0.1, "restore": 0.001, "symmetric": True}
_SINGLE: dict[str, Any] = {"alpha": 0.1, "unbiased": True}

_MD = "mariodoebler/test-time-adaptation: classification/conf.py, "
_OWN = "authors of CMF: conf.py, scenarios/"
_KIM = "hyeongyu-kim/Buffer_TTA: run.sh, conf.py, "
_WANG = "qinenergy/cotta: "
_NIU = "mr-eggplant/SAR: main.py"
_LEE = "Jhyun17/DeYO: main.py, exp_deyo.sh"
_CIFAR, _ALL, _NO_BN = "cifar10 cifar100", "imagenet imagenet_gn imagenet_vit", "imagenet_gn imagenet_vit"

_ROWS = [  # the first of several rows of a method on a benchmark is what `published` takes
    PublishedRow(
        "bn_adapt", f"{_CIFAR} imagenet", f"{_MD}methods/bn.py, cfgs/*/norm_test.yaml", {"alpha": 1.0}, {1: _SINGLE}
    ),
    PublishedRow("tent", "cifar10", "DequanWang/tent: cfgs/tent.yaml", _ADAM),
    PublishedRow("tent", "cifar100", f"{_MD}cfgs/cifar100_c/tent.yaml", _ADAM),
    PublishedRow("tent", "imagenet_gn", _NIU, _SCALED),
    PublishedRow("tent", "imagenet_vit", f"{_NIU}; {_LEE}", _VIT),
    PublishedRow("tent", _ALL, f"{_MD}cfgs/imagenet_c/tent.yaml", _NESTEROV),
    PublishedRow("tent", "imagenet", "mr-eggplant/EATA: main.py", _SGD),
    PublishedRow("eta", "cifar10", f"{_MD}cfgs/cifar10_c/eta.yaml", _ADAM | {"margin": 0.4}),
    PublishedRow("eta", "cifar100", f"{_MD}cfgs/cifar100_c/eta.yaml", _ADAM | {"margin": 0.1}),
    PublishedRow("eta", "imagenet", "mr-eggplant/EATA: main.py", _SGD | _ETA),
    PublishedRow("eta", "imagenet_gn", _NIU, _SCALED | _ETA),
    PublishedRow("eta", "imagenet_vit", f"{_NIU}; {_LEE}", _VIT | _ETA),
    PublishedRow("eta", _ALL, f"{_MD}cfgs/imagenet_c/eta.yaml", _NESTEROV | _ETA),
    PublishedRow("eata", "cifar10", f"{_MD}cfgs/cifar10_c/eata.yaml", _ADAM | {"margin": 0.4, "strength": 1.0}),
    PublishedRow("eata", "cifar100", f"{_MD}cfgs/cifar100_c/eata.yaml", _ADAM | {"margin": 0.1, "strength": 1.0}),
    PublishedRow("eata", "imagenet", "mr-eggplant/EATA: main.py", _SGD | _EATA),
    PublishedRow("eata", "imagenet_gn", _NIU, _SCALED | _EATA),
    PublishedRow("eata", "imagenet_vit", f"{_NIU}; {_LEE}", _VIT | _EATA),
    PublishedRow("eata", _ALL, f"{_MD}cfgs/imagenet_c/eata.yaml", _NESTEROV | _EATA),
    PublishedRow(
        "sar", _CIFAR, f"{_MD}methods/sar.py (SGD whatever cfgs say; skips no layer)", _SAR_FIXED | {"skip": ()}
    ),
    PublishedRow("sar", "imagenet imagenet_gn", _NIU, _SCALED | _SAR),
    PublishedRow("sar", "imagenet_vit", _NIU, _VIT | _SAR),
    PublishedRow("sar", "imagenet imagenet_gn", f"{_MD}methods/sar.py", _SAR_FIXED | {"learning_rate": 2.5e-4}),
    PublishedRow("sar", "imagenet_vit", f"{_MD}methods/sar.py", _SAR_FIXED),
    PublishedRow(
        "deyo", _CIFAR, f"{_MD}methods/deyo.py (skips no layer), cfgs/*/deyo.yaml", _ADAM | _DEYO_FIXED | {"skip": ()}
    ),
    PublishedRow("deyo", "imagenet", _LEE, _SCALED | {"margin": 0.3}),
    PublishedRow("deyo", "imagenet_gn", _LEE, _SCALED | _DEYO),
    PublishedRow("deyo", "imagenet_vit", _LEE, _VIT | _DEYO),
    PublishedRow("deyo", _ALL, f"{_MD}cfgs/imagenet_c/deyo.yaml", _NESTEROV | _DEYO_FIXED),
    PublishedRow("roid", _CIFAR, f"{_MD}methods/roid.py, cfgs/*/roid.yaml", _ADAM | _ROID),
    PublishedRow("roid", _ALL, f"{_MD}methods/roid.py, cfgs/imagenet_c/roid.yaml", _NESTEROV | _ROID),
    PublishedRow("cmf", _CIFAR, f"{_MD}methods/cmf.py, cfgs/*/cmf.yaml", _ADAM | _CMF),
    PublishedRow("cmf", "imagenet", f"{_OWN}run_tc_cs.sh (continual)", _CMF_RESNET | {"noise": 2.5e-4}),
    PublishedRow("cmf", "imagenet", f"{_OWN}run_cs.sh (mixed domains)", _CMF_RESNET),
    PublishedRow("cmf", "imagenet_vit", f"{_OWN}run_tc_cs.sh, run_cs.sh", _NESTEROV | _CMF),
    PublishedRow("cmf", _ALL, f"{_MD}methods/cmf.py, cfgs/imagenet_c/cmf.yaml", _NESTEROV | _CMF),
    PublishedRow(
        "buffer",
        "cifar10",
        f"{_KIM}cfgs/cifar10_c/tent_buffer.yaml, models/custom_standard.py (WideResNet-28)",
        _BUFFER,
        {4: _SMALL},
    ),
    PublishedRow(
        "buffer",
        "cifar100",
        f"{_KIM}cfgs/cifar100_c/tent_buffer.yaml, models/custom_standard_cifar100.py (ResNeXt-29)",
        _BUFFER_100,
        {4: _SMALL | {"stages": (1,)}},
    ),
    PublishedRow(
        "buffer",
        "cifar100",
        f"{_KIM}models/custom_standard_cifar100_wrn40.py (WideResNet-40)",
        _BUFFER_100 | {"boundaries": ()},
        {4: _SMALL | {"stages": (1,)}},
    ),
    PublishedRow(
        "buffer",
        "imagenet imagenet_gn",
        f"{_KIM}cfgs/imagenet_c/tent_buffer.yaml, resnet_custom.py at b266f3c",
        _NESTEROV | {"alpha": 1e-9},
    ),
    PublishedRow(
        "buffer",
        "imagenet_vit",
        f"{_KIM}cfgs/imagenet_c/tent_buffer.yaml, vision_transformer_custom.py at b266f3c",
        _NESTEROV | {"alpha": 1e-2},
    ),
    PublishedRow("cotta", "cifar10", f"{_WANG}cifar/cfgs/cifar10/cotta.yaml", _COTTA | {"confidence": 0.92}),
    PublishedRow("cotta", "cifar100", f"{_WANG}cifar/cfgs/cifar100/cotta.yaml", _COTTA | {"confidence": 0.72}),
    PublishedRow("cotta", "imagenet", f"{_WANG}imagenet/imagenetc.py, imagenet/cfgs/10orders/cotta/*.yaml", _COTTA_SGD),
    PublishedRow("cotta", _NO_BN, f"{_MD}cfgs/imagenet_c/cotta.yaml", _COTTA_SGD),
    PublishedRow("rotta", _CIFAR, "BIT-DA/RoTTA: configs/adapter/rotta.yaml", _ADAM),
    PublishedRow("rotta", _ALL, f"{_MD}cfgs/imagenet_c/rotta.yaml", _ADAM),
]
