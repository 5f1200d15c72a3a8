"""What comes in and out of a step: images that may be learned from, a slice of the global batch, logits."""

from typing import Any

import torch
from torch import Tensor

from spear_hf.errors import InputError
from spear_hf.utils.distributed import BatchShard, ProcessGroup


def validate_batch(x: Tensor, processes: ProcessGroup) -> tuple[Tensor, BatchShard]:
    """This process's images, checked, and how the global batch is spread.

    A process without images gets a black one, since few networks run on none: it keeps the collectives in step, and
    `BatchShard` counts it for nothing.

    Raises:
        InputError: on every process, where the images of any of them must not be learned from.
    """
    error = None
    try:
        check_images(x, may_be_empty=processes.count > 1)
    except InputError as refusal:
        error = refusal
    shard = processes.shard(len(x) if error is None else 0, error)
    if shard.total == 0:
        raise InputError("no process has an image in this batch; skip it")
    return (x if shard.local else x.new_zeros(1, *x.shape[1:])), shard


def check_images(x: Tensor, *, may_be_empty: bool = False) -> None:
    """Raise InputError for a batch that must not be answered or learned from; (B, ...) floats, B >= 1, all finite."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"pixel_values are {kind}, allowed is a float tensor (B, C, H, W); run the model's processor first"
        )
    if x.dim() < 2 or (len(x) == 0 and not may_be_empty):
        raise InputError(
            f"pixel_values have shape {tuple(x.shape)}, allowed is (B, C, H, W) with B >= 1; skip empty batches"
        )
    if not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
        raise InputError(
            f"pixel_values hold NaN or infinity in images {bad} of this batch; drop them, nothing was learned"
        )


def logits_of(output: Any) -> Tensor:
    """The (B, K) logits in what a classifier returns: a tensor, or a transformers ModelOutput."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the model returned {shape}, a classifier returns (B, K) logits or an output with .logits")
    return logits
