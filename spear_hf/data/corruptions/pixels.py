"""Between uint8 pixels and the floats that corruptions compute with."""

from torch import Tensor


def to_uint8(levels: Tensor) -> Tensor:
    """Grey levels cut to [0, 255] and floored, as the published images were: nothing rounds. Overwrites `levels`."""
    return levels.clamp_(0, 255).short().byte()  # by way of int16: torch has no fast path from float to uint8
