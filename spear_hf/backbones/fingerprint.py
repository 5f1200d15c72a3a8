"""Which base an adapter belongs to: a hash of the structure, and some weights, compared with a tolerance for bf16."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

PROBES = 64
HEAD_PROBES = 8  # values of each of the last two tensors, because another head on the same body is another base
TOLERANCE = 0.02  # bf16 changes a value by at most 0.4 %; another training run changes nearly all by more than 2 %


@dataclass(frozen=True)
class Fingerprint:
    """The size, structure and some weights of a base.

    Args:
        num_parameters: of the base, without RSPs.
        structure: sha256 over the sorted "name:shape" of parameters and buffers; equal for a timm model and for
            transformers' wrapper around it.
        probe: weights at fixed positions, some of them in the head; empty if the base has no real floating-point
            weights (meta, quantised).

    >>> from spear_hf.backbones.fingerprint import Fingerprint
    >>> Fingerprint(2, "ab", (1.0, 2.0)).difference(Fingerprint(2, "ab", (1.0, 3.0)))
    'other weights (1 of 2 probed values differ; value 1 is 3, expected 2)'
    """

    num_parameters: int
    structure: str
    probe: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self) | {"probe": list(self.probe)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Fingerprint":
        """The Fingerprint that `to_dict` wrote."""
        return cls(int(data["num_parameters"]), str(data["structure"]), tuple(float(v) for v in data["probe"]))

    def difference(self, other: "Fingerprint") -> str | None:
        """How `other` differs from this base, in words; None if they are the same base."""
        if self.structure != other.structure:
            return (
                f"another structure ({other.num_parameters:,} parameters, expected {self.num_parameters:,}; "
                f"structure {other.structure[:12]}, expected {self.structure[:12]})"
            )
        if len(self.probe) != len(other.probe):
            return f"{len(other.probe)} weights that can be probed, expected {len(self.probe)}"
        pairs = list(zip(self.probe, other.probe, strict=True))
        off = [(i, a, b) for i, (a, b) in enumerate(pairs) if not abs(a - b) <= TOLERANCE * max(abs(a), abs(b))]
        if not off:
            return None
        i, expected, found = off[0]
        example = f"value {i} is {found:.6g}, expected {expected:.6g}"
        return f"other weights ({len(off)} of {len(pairs)} probed values differ; {example})"


@torch.no_grad()
def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of a base model; takes about a millisecond for any size.

    >>> import timm
    >>> from spear_hf.backbones.fingerprint import fingerprint
    >>> model = timm.create_model("test_resnet")
    >>> fingerprint(model).difference(fingerprint(model)) is None
    True
    """
    state = {name.removeprefix("timm_model."): value for name, value in model.state_dict().items()}
    shapes = sorted(f"{name}:{tuple(value.shape)}" for name, value in state.items())
    structure = hashlib.sha256("\n".join(shapes).encode()).hexdigest()
    return Fingerprint(sum(p.numel() for p in model.parameters()), structure, _probe(state))


def _probe(state: dict[str, Tensor]) -> tuple[float, ...]:
    """PROBES values, spread evenly over the tensors in name order, then HEAD_PROBES of each of the last two tensors."""
    real = {n: t for n, t in state.items() if t.is_floating_point() and t.numel() > 0 and t.device.type != "meta"}
    if not real:
        return ()
    spread = [real[name] for name in sorted(real)]
    picks = [(spread[i * len(spread) // PROBES], i) for i in range(PROBES)]
    picks += [(tensor, i) for tensor in list(real.values())[-2:] for i in range(HEAD_PROBES)]
    return tuple(_value(tensor, number * 7919) for tensor, number in picks)


def _value(tensor: Tensor, place: int) -> float:
    """The value at `place` in row-major order, modulo the size; `flatten` would copy a channels_last tensor."""
    index = []
    for size in reversed(tensor.shape):
        place, at = divmod(place, size)
        index.append(at)
    return float(tensor[tuple(reversed(index))])
