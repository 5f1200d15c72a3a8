"""What a stage boundary is: the tensor z_d between two stages (Eq. 2), and where in the module tree it is touched."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Boundary:
    """One tensor z_d of Eq. 2 and the hook that reaches it.

    Args:
        depth: 0 for the stem, 1..L for the stages.
        name: what a person calls it: "stem", "stage1", ...
        module: full path of the module whose output (or input) is z_d, as `named_modules()` spells it.
        where: "out" for the module's output, "in" for its input (a tensor that no module emits, such as x + pos_embed).
        channels: C_d.
        channel_axis: the axis of z_d that holds the channels: 1 for NCHW, -1 for NHWC and B x N x C.
        output_slot: where z_d sits in what the module returns or takes: () for a bare tensor, (0,) for the first
            entry of a tuple, ("last_hidden_state",) for a ModelOutput field; for where="in" the first element is the
            position of the argument, or its keyword.
        part: 0, or a running number when several tensors together form one boundary (HRNet's parallel resolutions).
    """

    depth: int
    name: str
    module: str
    where: Literal["out", "in"] = "out"
    channels: int = 0
    channel_axis: int = 1
    output_slot: tuple[int | str, ...] = ()
    part: int = 0

    @property
    def key(self) -> str:
        """The name of this boundary's RSP inside an adapter: its depth, and its part where there are several."""
        return str(self.depth) if self.part == 0 else f"{self.depth}_{self.part}"

    @property
    def num_parameters(self) -> int:
        """2 C_d, this boundary's part of Eq. 5."""
        return 2 * self.channels

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_dict` reads it back to an equal Boundary."""
        return asdict(self) | {"output_slot": list(self.output_slot)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Boundary":
        """The Boundary that `to_dict` wrote; raises TypeError on unknown keys."""
        return cls(**{**data, "output_slot": tuple(data.get("output_slot", ()))})
