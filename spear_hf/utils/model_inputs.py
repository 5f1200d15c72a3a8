"""What a step was given for a model that takes more than images: the images, and what goes with them.

SigLIP 2 takes patches with a mask and their shapes; a model of one's own takes an image and a row of a table.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spear_hf.errors import InputError

LABELS = ("labels", "label")
OF_STREAMS = (*LABELS, "names", "index", "domain", "is_domain_start")
"""What a batch of a stream holds beside images; a step looks at none of it."""

Further = dict[str, Any]
"""Argument of the base -> what goes with the images: a tensor (B, ...) with a row for each, or one value for all."""


class Arguments(NamedTuple):
    """The arguments that a base names and a step may pass on; labels are never among them.

    Args:
        names: the image first.
        required: those without a default.
    """

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


def arguments_of(base: nn.Module) -> Arguments:
    """What a step may pass on to `base`.

    >>> class Two(nn.Module):
    ...     def forward(self, image, table=None, labels=None): ...
    >>> arguments_of(Two())
    Arguments(names=('image', 'table'), required=('image',))
    """
    try:
        parameters = inspect.signature(base.forward).parameters.values()
    except (TypeError, ValueError):  # a forward that is no Python function
        return Arguments()
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in starred and p.name not in LABELS]
    return Arguments(tuple(p.name for p in named), tuple(p.name for p in named if p.default is p.empty))


def images_and_further(
    x: Any, pixel_values: Any, given: Mapping[str, Any], arguments: Arguments
) -> tuple[Any, Further]:
    """The images among what a step was given, and what the base takes beside them.

    Args:
        x: a tensor, or a mapping, such as a processor or a stream gives: of its entries those that the base names.
        pixel_values: the images, in place of x.
        given: further arguments by name, each of which the base must name; what a stream adds is passed over.
        arguments: of the base.

    Raises:
        InputError: no images, two batches of images, an argument that the base does not take, or one that it lacks.

    >>> batch = {"image": 1, "table": 2, "labels": 3}
    >>> images_and_further(batch, None, {}, Arguments(("image", "table")))
    (1, {'table': 2})
    """
    names = arguments.names
    entries = dict(x) if isinstance(x, Mapping) else {}
    if unknown := sorted(given.keys() - {*names, *OF_STREAMS}):
        allowed = f"allowed are {', '.join(names)}" if names else "its forward names no arguments"
        raise InputError(f"the model takes no {', '.join(unknown)}; {allowed}")
    if twice := sorted(entries.keys() & given.keys()):
        raise InputError(f"{', '.join(twice)} came twice, in x and by name; give each once")
    entries |= given
    image = "pixel_values" if "pixel_values" in entries or not names else names[0]
    came = (None if isinstance(x, Mapping) else x, pixel_values, entries.pop(image, None))
    found = [each for each in came if each is not None]
    if not found and isinstance(x, Mapping):
        raise InputError(f"the batch has {sorted(map(str, x))}; allowed is one with pixel_values")
    if len(found) != 1:
        raise InputError(f"{'two' if found else 'no'} batches of images were given; give x or pixel_values=")
    further = {name: value for name, value in entries.items() if name in names[1:] and value is not None}
    if lacking := [name for name in arguments.required[1:] if name not in further]:
        raise InputError(f"the model also takes {', '.join(lacking)}; step(**batch), with a row for each image")
    return found[0], further


def called(model: Any, x: Any) -> Any:
    """What a model returns for images, or for a mapping of images and what goes with them.

    >>> called(lambda x: x + 1, 1)
    2
    """
    if not isinstance(x, Mapping):
        return model(x)
    images, further = images_and_further(x, None, {}, arguments_of(model))
    return model(images, **further)


def images_alone(x: Any, pixel_values: Any, model: nn.Module | None, who: str) -> Any:
    """The images among what a step was given, for a method that passes on nothing else.

    Raises:
        InputError: as for `images_and_further`, or what the model takes beside images.

    >>> images_alone({"pixel_values": 1, "labels": 2}, None, nn.Identity(), "Tent")
    1
    """
    arguments = Arguments() if model is None else arguments_of(model)
    images, further = images_and_further(x, pixel_values, {}, arguments)
    if further:
        raise InputError(
            f"the batch has {', '.join(further)} beside images, and {who} passes on images alone; take Spear for a "
            "model of several inputs"
        )
    return images


def check_further(further: Further, images: int) -> None:
    """Raise InputError for a tensor that has not a row for each image, or holds NaN or infinity.

    >>> check_further({"table": torch.zeros(2, 5), "interpolate_pos_encoding": True}, 2)
    """
    for name, value in further.items():
        if not isinstance(value, Tensor):
            continue
        if value.dim() == 0 or len(value) != images:
            raise InputError(f"{name} has shape {tuple(value.shape)} for {images} images; give a row for each image")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{name} holds NaN or infinity; drop those images, nothing was learned")


def rows_of(further: Further, rows: Any) -> Further:
    """What goes with these images alone.

    Args:
        further: of all images.
        rows: a slice or (n,) int64, the places of the images.
    """
    return {
        name: value[rows.to(value.device) if isinstance(rows, Tensor) else rows] if isinstance(value, Tensor) else value
        for name, value in further.items()
    }


def with_one_row(further: Further) -> Further:
    """What goes with the black image of a process that has none: zeros, or ones, where a mask of zeros hides all."""
    return {
        name: value.new_full((1, *value.shape[1:]), not value.is_floating_point())
        if isinstance(value, Tensor)
        else value
        for name, value in further.items()
    }


def normal_tensors(images: Any, further: Further) -> tuple[Any, Further]:
    """The same, with a copy of each tensor that was made in inference mode, which nothing can learn on."""

    def normal(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and value.is_inference() else value

    return normal(images), {name: normal(value) for name, value in further.items()}
