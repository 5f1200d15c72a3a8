"""What comes in and out of a step: images that may be learned from, a slice of the global batch, logits."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spear_hf.errors import InputError
from spear_hf.utils.distributed import BatchShard, ProcessGroup
from spear_hf.utils.model_inputs import Further, check_further


def validate_batch(x: Tensor, processes: ProcessGroup, further: Further | None = None) -> tuple[Tensor, BatchShard]:
    """This process's images, checked, and how the global batch is spread.

    A process without images gets a black one, since few networks run on none: it keeps the collectives in step, and
    `BatchShard` counts it for nothing.

    Args:
        x: (B, ...) of this process.
        processes: all of them call this.
        further: what goes with the images, checked too.

    Raises:
        InputError: on every process, where the images of any of them must not be learned from.
    """
    error = None
    try:
        check_images(x, may_be_empty=processes.count > 1)
        check_further(further or {}, len(x))
    except InputError as refusal:
        error = refusal
    shard = processes.shard(len(x) if error is None else 0, error)
    if shard.total == 0:
        raise InputError("no process has an image in this batch; skip it")
    return (x if shard.local else x.new_zeros(1, *x.shape[1:])), shard


def pixels_of(x: Any, pixel_values: Any = None) -> Any:
    """The images among what a step was given: a tensor, what a processor returns, or `pixel_values`.

    >>> import torch
    >>> from spear_hf.utils.batch import pixels_of
    >>> pixels_of({"pixel_values": torch.zeros(2, 3, 8, 8)}).shape
    torch.Size([2, 3, 8, 8])

    Raises:
        InputError: both, none, or a dictionary without pixel_values.
    """
    if (x is None) is (pixel_values is None):
        raise InputError(f"{'no' if x is None else 'two'} batches of images were given; give x or pixel_values=")
    found = pixel_values if x is None else x
    if not isinstance(found, Mapping):
        return found
    if "pixel_values" not in found:
        raise InputError(f"the batch has {sorted(map(str, found))}; allowed is one with pixel_values")
    return found["pixel_values"]


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
    if logits.shape[1] < 2:
        raise InputError(
            f"the model returned {logits.shape[1]} logit for each image, which is no choice between classes; give "
            "two or more: torch.stack([-z / 2, z / 2], 1) makes two of one"
        )
    return logits
