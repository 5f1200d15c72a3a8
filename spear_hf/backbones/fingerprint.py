"""Which base an adapter belongs to: a hash of the structure, and a probe of the weights that survives bf16."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

PROBES = 64
HEAD_PROBES = 8  # of each of the last two tensors: another head on the same body is another base
TOLERANCE = 0.02  # bf16 moves a value by at most 0.4 %, another training run moves nearly all of them by more than 2 %


@dataclass(frozen=True)
class Fingerprint:
    """What tells one base from another.

    Args:
        num_parameters: of the base, RSPs not counted.
        structure: sha256 over the sorted "name:shape" of parameters and buffers; equal for a timm model and for
            transformers' wrapper around it.
        probe: weights at fixed positions, the head's among them; empty where the base holds no real floating-point
            weights (meta, quantised).
    """

    num_parameters: int
    structure: str
    probe: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"probe": list(self.probe)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Fingerprint":
        """What `to_dict` wrote."""
        return cls(int(data["num_parameters"]), str(data["structure"]), tuple(float(v) for v in data["probe"]))

    def difference(self, other: "Fingerprint") -> str | None:
        """What tells `other` from this one, in words; None where they are the same base."""
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
    """The fingerprint of a base model; about a millisecond, whatever its size."""
    state = {name.removeprefix("timm_model."): value for name, value in model.state_dict().items()}
    shapes = sorted(f"{name}:{tuple(value.shape)}" for name, value in state.items())
    structure = hashlib.sha256("\n".join(shapes).encode()).hexdigest()
    return Fingerprint(sum(p.numel() for p in model.parameters()), structure, _probe(state))


def _probe(state: dict[str, Tensor]) -> tuple[float, ...]:
    """PROBES values spread evenly over the tensors in name order, and HEAD_PROBES of each of the last two as built."""
    real = {n: t for n, t in state.items() if t.is_floating_point() and t.numel() > 0 and t.device.type != "meta"}
    if not real:
        return ()
    spread = [real[name] for name in sorted(real)]
    picks = [(spread[i * len(spread) // PROBES], i) for i in range(PROBES)]
    picks += [(tensor, i) for tensor in list(real.values())[-2:] for i in range(HEAD_PROBES)]
    return tuple(_value(tensor, number * 7919) for tensor, number in picks)


def _value(tensor: Tensor, place: int) -> float:
    """The value at `place`, counted in row-major order whatever the memory format, and around."""
    index = []
    for size in reversed(tensor.shape):
        place, at = divmod(place, size)
        index.append(at)
    return float(tensor[tuple(reversed(index))])
