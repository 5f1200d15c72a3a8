"""Which base an adapter belongs to: a hash of the structure, some weights, compared with a tolerance for bf16, and what
the base answers to a fixed image.

Names of modules change between versions of a library while the weights stay. Where the structure differs, the weights
decide alone: each probed value must be in the model at its place in some tensor, whatever that tensor is called.
Quantised weights are probed for the floats that they stand for, and are another base than the floats they were made of.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.backbones.behaviour import Behaviour, behaviour_of
from spear_hf.backbones.head import Head, own_head
from spear_hf.backbones.tensors import numbers_in, quantization_of, tensors_of

PROBES = 64
_WRAPPERS = re.compile(r"^(timm_model|two_tower)\.")  # transformers' around a timm model, ours around CLIP
HEAD_PROBES = 8  # values of each of the last two tensors, because another head on the same body is another base
TOLERANCE = 0.02  # bf16 changes a value by at most 0.4 %; another training run changes nearly all by more than 2 %
SMALLEST = 2.0**-24  # float16 has nothing between this and 0, and networks have weights there
CLOSE = 0.004  # of values whose tensor is not known by name: with 2 % chance would find a partner for each


@dataclass(frozen=True)
class Fingerprint:
    """The size, structure and some weights of a base.

    Args:
        num_parameters: of the base, without RSPs.
        structure: sha256 over the sorted "name:shape" of parameters and buffers; equal for a timm model and for
            transformers' wrapper around it.
        probe: weights at fixed positions, some of them in the head; empty if the base has no real floating-point
            weights (meta).
        quantization: the library that quantised the weights; None for floats.
        behaviour: what the base answers to a fixed image; None is not compared.

    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> Fingerprint(2, "ab", (1.0, 2.0)).difference(Fingerprint(2, "ab", (1.0, 3.0)))
    'other weights (1 of 2 probed values differ; value 1 is 3, expected 2)'
    """

    num_parameters: int
    structure: str
    probe: tuple[float, ...]
    quantization: str | None = None
    behaviour: Behaviour | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values, without those that are None."""
        behaviour = None if self.behaviour is None else self.behaviour.to_dict()
        fields = asdict(self) | {"probe": list(self.probe), "behaviour": behaviour}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Fingerprint":
        """The Fingerprint that `to_dict` wrote.

        Raises:
            ValueError: an entry of another type, or a value that is not finite: compared with infinity, all is equal.
        """
        number, structure, probe = data["num_parameters"], data["structure"], data["probe"]
        quantization, behaviour = data.get("quantization"), data.get("behaviour")
        if type(number) is not int or not isinstance(structure, str) or not isinstance(probe, (list, tuple)):
            raise ValueError("a fingerprint is a number of parameters, a structure and a list of weights")
        if quantization is not None and not isinstance(quantization, str):
            raise ValueError("the quantization of a fingerprint is a name or missing")
        if not all(type(v) in (int, float) and abs(v) < 1e300 for v in probe):
            raise ValueError("the weights of a fingerprint are finite numbers")
        behaves = None if behaviour is None else Behaviour.from_dict(behaviour)
        return cls(number, structure, tuple(float(v) for v in probe), quantization, behaves)

    def difference(self, other: "Fingerprint") -> str | None:
        """How `other` differs from this base, in words; None if they are the same base."""
        if self.quantization != other.quantization:
            found, expected = (f"quantised by {f.quantization}" if f.quantization else "floats" for f in (other, self))
            return f"other weights ({found}, expected {expected})"
        if self.structure != other.structure:
            return (
                f"another structure ({other.num_parameters:,} parameters, expected {self.num_parameters:,}; "
                f"structure {other.structure[:12]}, expected {self.structure[:12]})"
            )
        if len(self.probe) != len(other.probe):
            return f"{len(other.probe)} weights that can be probed, expected {len(self.probe)}"
        pairs = list(zip(self.probe, other.probe, strict=True))
        return _unlike([(i, a, b) for i, (a, b) in enumerate(pairs) if not _are_close(a, b, TOLERANCE)], len(pairs))

    def difference_from(self, model: nn.Module) -> str | None:
        """How a model's weights differ from this base's, in words; None if they do not. Names do not count.

        >>> from torch import nn
        >>> from spear_hf.backbones.fingerprint import fingerprint
        >>> net = nn.Sequential(nn.Linear(8, 4))
        >>> fingerprint(net).difference_from(nn.ModuleDict({"renamed": net[0]})) is None
        True
        """
        mine = fingerprint(model)
        apart = self.difference(mine)
        if apart is None or self.structure == mine.structure or self.num_parameters != mine.num_parameters:
            return apart
        if self.quantization != mine.quantization:
            return apart
        if len(self.probe) != len(mine.probe) or 2 * _telling(self.probe) < max(2, _telling(mine.probe)):
            return apart
        candidates = _values_by_place(model)
        off = []
        for i, (place, expected) in enumerate(zip(_places(), self.probe, strict=True)):
            nearest = min(candidates[place], key=lambda value: abs(value - expected))
            if not _are_close(expected, nearest, CLOSE):
                off.append((i, expected, nearest))
        return _unlike(off, len(self.probe))

    def behaviour_difference(self, model: nn.Module) -> str | None:
        """How a model of these weights answers otherwise than this base, in words; None if alike or if not known.

        Nothing may act on the model: it is called once.

        >>> from torch import nn
        >>> from spear_hf.backbones.fingerprint import fingerprint
        >>> net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU(), nn.Linear(3, 4))
        >>> saved = fingerprint(net, behaviour=True)
        >>> net[2] = nn.Sigmoid()
        >>> saved.behaviour_difference(net)[:38]
        'another behaviour with these weights ('
        """
        return None if self.behaviour is None else self.behaviour.difference_from(model)


def _are_close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), SMALLEST)


def _unlike(off: list[tuple[int, float, float]], count: int) -> str | None:
    if not off:
        return None
    i, expected, found = off[0]
    example = f"value {i} is {found:.6g}, expected {expected:.6g}"
    return f"other weights ({len(off)} of {count} probed values differ; {example})"


def _telling(probe: tuple[float, ...]) -> int:
    """How many different values there are beside 0 and 1, which nearly every network holds somewhere."""
    return len({value for value in probe if abs(value) > SMALLEST and value != 1.0})


@torch.no_grad()
def fingerprint(model: nn.Module, *, behaviour: bool = False) -> Fingerprint:
    """The fingerprint of a base model; takes about a millisecond for any size.

    Args:
        model: a base.
        behaviour: also what it answers, for which it is called once; nothing may act on it then.

    >>> import timm
    >>> from spear_hf.backbones.fingerprint import fingerprint
    >>> model = timm.create_model("test_resnet")
    >>> fingerprint(model).difference(fingerprint(model)) is None
    True
    """
    state = {_WRAPPERS.sub("", name): value for name, value in tensors_of(model)}
    shapes = sorted(f"{name}:{tuple(value.shape)}" for name, value in state.items())
    structure = hashlib.sha256("\n".join(shapes).encode()).hexdigest()
    behaves = behaviour_of(model) if behaviour else None
    count = sum(p.numel() for p in model.parameters())
    return Fingerprint(count, structure, _probe(state), quantization_of(model), behaves)


def _probe(state: dict[str, Tensor]) -> tuple[float, ...]:
    """PROBES values, spread evenly over the tensors in name order, then HEAD_PROBES of each of the last two tensors."""
    real = _real(state)
    if not real:
        return ()
    spread = sorted(real)
    names = [spread[i * len(spread) // PROBES] for i in range(PROBES)]
    names += [name for name in list(real)[-2:] for _ in range(HEAD_PROBES)]
    places: dict[str, list[int]] = {}
    for name, place in zip(names, _places(), strict=True):
        places.setdefault(name, []).append(place)
    values = {name: iter(_values(real[name], several)) for name, several in places.items()}
    return tuple(next(values[name]) for name in names)


def _real(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in state.items() if t.is_floating_point() and t.numel() > 0 and t.device.type != "meta"}


def _places() -> list[int]:
    """The place of each probed value in its tensor, in row-major order, before the modulo."""
    return [7919 * i for i in (*range(PROBES), *range(HEAD_PROBES), *range(HEAD_PROBES))]


@torch.no_grad()
def _values_by_place(model: nn.Module) -> dict[int, list[float]]:
    """place -> the value there in each tensor of the model."""
    places = sorted(set(_places()))
    columns = []
    for tensor in _real(dict(tensors_of(model))).values():
        flat = numbers_in(tensor).reshape(-1)
        columns.append(flat[torch.tensor([p % len(flat) for p in places], device=flat.device)].double().cpu())
    return dict(zip(places, torch.stack(columns, 1).tolist(), strict=True))


def _values(tensor: Tensor, places: list[int]) -> list[float]:
    """The values at these places in row-major order, modulo the size; `flatten` would copy a channels_last tensor."""
    tensor, found = numbers_in(tensor), []
    for place in places:
        index = []
        for size in reversed(tensor.shape):
            place, at = divmod(place, size)
            index.append(at)
        found.append(float(tensor[tuple(reversed(index))]))
    return found


@torch.no_grad()
def weights_hash(model: nn.Module) -> str:
    """A hash of all weights and buffers, bit for bit, and of the labels of a model of images and texts.

    >>> from torch import nn
    >>> from spear_hf.backbones.fingerprint import weights_hash
    >>> weights_hash(nn.Linear(3, 2)) == weights_hash(nn.Linear(3, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors_of(model):
        if tensor.device.type != "meta":
            value = numbers_in(tensor)
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
    if words := own_head(model).to_dict():
        digest.update(json.dumps(words, sort_keys=True).encode())
    return digest.hexdigest()


class KnownBase:
    """Facts that tell one base from others, worked out when first asked for.

    Args:
        model: the base.

    >>> from torch import nn
    >>> from spear_hf.backbones.fingerprint import KnownBase
    >>> base = KnownBase(nn.Linear(3, 2))
    >>> base.difference(base())
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._facts: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        """JSON-ready."""
        if self._facts is None:
            head = own_head(self.model).to_dict()
            self._facts = {"fingerprint": fingerprint(self.model).to_dict()} | ({"head": head} if head else {})
        return self._facts

    def difference(self, facts: Any) -> str | None:
        """How this base differs from that of these facts, in words; None if it is the same base."""
        try:
            apart = Fingerprint.from_dict(facts["fingerprint"]).difference_from(self.model)
            return apart or Head.from_dict(facts.get("head", {})).difference(own_head(self.model))
        except (TypeError, KeyError, ValueError) as error:
            return f"the file says nothing of its base, or nothing valid ({error})"
