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
    # a sum is cheap, and shows any NaN or infinity; finite pixels whose sum is none are looked at one by one
    if not bool(torch.isfinite(x.sum(dtype=torch.float32))) and not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
        raise InputError(
            f"pixel_values hold NaN or infinity in images {bad} of this batch; drop them, nothing was learned"
        )


def logits_of(output: Any) -> Tensor:
    """The (B, K) logits in what a classifier returns: a tensor, or a transformers ModelOutput."""
    found = output.get("logits", output) if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(found, Tensor) or found.dim() != 2:
        raise no_logits(found)
    if found.shape[1] < 2:
        raise InputError(
            f"the model returned {found.shape[1]} logit for each image, which is no choice between classes; give "
            "two or more: torch.stack([-z / 2, z / 2], 1) makes two of one"
        )
    return found


def no_logits(output: Any) -> InputError:
    """The error for an output that is no logits; it says what came, and how to name them.

    >>> import torch
    >>> str(no_logits(torch.zeros(2, 3, 8, 8)))[:40]
    'the model returned a tensor (2, 3, 8, 8)'
    """
    return InputError(
        f"the model returned {contents(output)}; a classifier returns (B, K) logits, or an output with .logits; say "
        "where they are: get_spear_model(model, logits=...) with a key, a place, or a function such as "
        "logits=lambda out: out[0]"
    )


def contents(output: Any) -> str:
    """What a model returned, in words.

    >>> import torch
    >>> contents({"main": torch.zeros(2, 3), "aux": [torch.zeros(1)]})
    "a dict of 'main' (2, 3), 'aux' list"
    """
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)}"
    if isinstance(output, Mapping):
        named: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        named = list(enumerate(output))
    else:
        fields = getattr(output, "_fields", None) or vars(output) if hasattr(output, "__dict__") else ()
        named = [(name, getattr(output, name)) for name in fields]
    shown = [f"{name!r} {tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for name, v in named[:8]]
    return f"a {type(output).__name__}" + (f" of {', '.join(shown)}" if shown else "")
