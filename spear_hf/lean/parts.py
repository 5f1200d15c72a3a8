"""In which parts a long computation runs: few numbers at a time stay in a processor's cache."""

from torch import Tensor


def at_once(x: Tensor, on_cpu: int) -> int:
    """How many numbers: `on_cpu` there; 64 MiB in fp32 elsewhere, where every part costs a launch."""
    return on_cpu if x.device.type == "cpu" else 2**24
