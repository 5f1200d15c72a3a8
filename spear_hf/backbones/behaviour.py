"""Behaviour: what a base answers to a fixed image, which tells apart bases whose weights alone are equal.

Another activation, epsilon or stride leaves every weight as it is. The image is a formula, so it is the same with every
version of torch, and the answers are compared with a tolerance for other hardware and precision.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.inputs import candidate_inputs
from spear_hf.boundaries.probe_forward import device_of, dtype_of, held_still
from spear_hf.errors import InputError
from spear_hf.utils.batch import logits_of

LOGITS = 16  # that are kept, at most
SIDE = 64  # of the image, where the base takes any size
TOLERANCES = {"single": 0.0003, "reduced": 0.002, "half": 0.02}
"""Precision -> how far logits may be apart, as a part of their spread. Measured on six networks: float32 on another
machine 1e-6, TF32 1e-3, bfloat16 4e-3; another activation 4e-3 to 0.7, another stride 0.01 to 0.2."""


@dataclass(frozen=True)
class Behaviour:
    """The logits of a base for one image.

    Args:
        image: (C, H, W) of the image.
        logits: at most LOGITS of them, spread evenly over the classes.
        precision: of the base: "single" (or more), "reduced" (on an accelerator, which may use TF32) or "half".

    >>> from spear_hf.backbones.behaviour import Behaviour
    >>> Behaviour((3, 8, 8), (1.0, 2.0)).difference((1.0, 2.5), "single")
    'another behaviour with these weights (logit 1 of a fixed image is 2.5, expected 2)'
    """

    image: tuple[int, int, int]
    logits: tuple[float, ...]
    precision: str = "single"

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return {"image": list(self.image), "logits": list(self.logits), "precision": self.precision}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Behaviour":
        """The Behaviour that `to_dict` wrote.

        Raises:
            ValueError: an entry of another type, or a value that is not finite.
        """
        image, logits, precision = data["image"], data["logits"], data["precision"]
        if not (isinstance(image, (list, tuple)) and len(image) == 3 and all(type(n) is int and n > 0 for n in image)):
            raise ValueError("the image of a behaviour is its three sizes")
        if not isinstance(logits, (list, tuple)) or not 2 <= len(logits) <= LOGITS:
            raise ValueError(f"a behaviour is 2 to {LOGITS} logits")
        if not isinstance(precision, str) or precision not in TOLERANCES:
            raise ValueError(f"the precision of a behaviour is one of {', '.join(TOLERANCES)}")
        if not all(type(v) in (int, float) and abs(v) < 1e30 for v in logits):
            raise ValueError("the logits of a behaviour are finite numbers")
        return cls((image[0], image[1], image[2]), tuple(float(v) for v in logits), precision)

    def difference_from(self, model: nn.Module) -> str | None:
        """How a model answers otherwise, in words; None if it answers alike."""
        answered = _answer(model, self.image) if self.image in _shapes(model) else None  # no file chooses a size
        if answered is None:
            return f"another behaviour with these weights (it does not take an image {self.image})"
        return self.difference(answered, _precision(model))

    def difference(self, logits: tuple[float, ...], precision: str) -> str | None:
        """How these logits differ, in words; None if they are as near as both precisions let them be."""
        if len(logits) != len(self.logits):
            return f"another behaviour ({len(logits)} logits of a fixed image, expected {len(self.logits)})"
        allowed = self._spread(self.precision if precision == "single" else precision)
        allowed *= max(TOLERANCES[precision], TOLERANCES[self.precision])
        off = [abs(a - b) for a, b in zip(logits, self.logits, strict=True)]
        if math.sqrt(sum(o * o for o in off) / len(off)) <= allowed:
            return None
        i = off.index(max(off))
        return (
            f"another behaviour with these weights (logit {i} of a fixed image is {logits[i]:.6g}, expected "
            f"{self.logits[i]:.6g})"
        )

    def _spread(self, precision: str) -> float:
        """How far the logits are apart; below single precision at least how large they are.

        Few digits round a logit by a part of its size, and CLIP's are large and near each other: 25.1, 24.3.
        """
        largest = max(map(abs, self.logits))
        least = 0.01 * largest if precision == "single" else largest
        return max(max(self.logits) - min(self.logits), least, 1e-6)


def behaviour_of(model: nn.Module) -> Behaviour | None:
    """The Behaviour of a base, which is left as it was; None of one that no image alone can be given to.

    Args:
        model: a base on which nothing acts.

    >>> import timm
    >>> from spear_hf.backbones.behaviour import behaviour_of
    >>> behaviour_of(timm.create_model("test_resnet")).image
    (3, 64, 64)
    """
    if any(p.device.type == "meta" for p in model.parameters()):
        return None
    for shape in _shapes(model):
        answered = _answer(model, shape)
        if answered is not None:
            return Behaviour(shape, answered, _precision(model))
    return None


def _shapes(model: nn.Module) -> Iterator[tuple[int, int, int]]:
    """(C, H, W) that the model may take, small ones first."""
    seen: set[tuple[int, int, int]] = set()
    for inputs in candidate_inputs(model):
        given = [*inputs.args, *inputs.kwargs.values()]
        if len(given) != 1 or given[0].dim() != 4 or not given[0].is_floating_point():
            continue
        _, channels, height, width = given[0].shape
        for shape in ((channels, SIDE, SIDE), (channels, height, width)):
            if shape not in seen:
                seen.add(shape)
                yield shape


def _precision(model: nn.Module) -> str:
    if torch.finfo(dtype_of(model)).eps > 1e-5:
        return "half"
    return "single" if device_of(model).type == "cpu" else "reduced"


def _answer(model: nn.Module, shape: tuple[int, int, int]) -> tuple[float, ...] | None:
    """Some of the logits for the fixed image of this shape; None where the model does not answer it in finite ones."""
    image = _image(shape).to(device_of(model), dtype_of(model))
    name = getattr(model, "main_input_name", None) if hasattr(model, "config") else None
    # a steered base is still already, and other threads may be calling it
    is_still = not any(m.training for m in model.modules()) and not any(p.requires_grad for p in model.parameters())
    devices = [image.device.index or 0] if image.device.type == "cuda" else []
    try:
        with nullcontext() if is_still else held_still(model), torch.random.fork_rng(devices), torch.no_grad():
            torch.manual_seed(0)  # a base that draws numbers draws the same ones
            logits = logits_of(model(**{name: image}) if isinstance(name, str) else model(image))[0].double().cpu()
    except (InputError, RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError, KeyError):
        return None
    if not bool(torch.isfinite(logits).all()):
        return None
    count = min(LOGITS, len(logits))
    return tuple(float(logits[i * len(logits) // count]) for i in range(count))


def _image(shape: tuple[int, int, int]) -> Tensor:
    """(1, C, H, W) in [-1.5, 1.5], without a pattern that a stride could miss."""
    return torch.arange(math.prod(shape), dtype=torch.float64).square().mul(0.37).sin().mul(1.5).view(1, *shape)
