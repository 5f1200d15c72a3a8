"""The batches of any stream in one form: `load_stream`'s, the user's own DataLoader, or any iterable."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spear_hf.errors import DataError
from spear_hf.utils.model_inputs import OF_STREAMS

UNNAMED = "images"  # the domain of batches that name none


class InputBatch(NamedTuple):
    """A batch before it is answered.

    >>> import torch
    >>> from spear_hf.evaluation.input_batch import InputBatch
    >>> InputBatch(torch.zeros(2, 3, 8, 8), None, ["a.jpg", "b.jpg"], "images", True).names[1]
    'b.jpg'
    """

    pixel_values: Tensor  # (B, C, H, W), as the model takes them
    labels: Tensor | None  # (B,) int64
    names: list[str]  # of the images; running numbers where the stream has none
    domain: str
    is_domain_start: bool
    further: Mapping[str, Any] = MappingProxyType({})  # what else the batch holds, for models of several inputs

    def inputs(self, device: Any = None) -> Tensor | dict[str, Any]:
        """What a method is given: the images, with what goes with them where the batch has any.

        Args:
            device: where tensors are moved; None leaves them.
        """

        def moved(value: Any) -> Any:
            return value.to(device) if device is not None and isinstance(value, Tensor) else value

        if not self.further:
            return moved(self.pixel_values)
        return {name: moved(value) for name, value in {**self.further, "pixel_values": self.pixel_values}.items()}


def input_batches(stream: Iterable[Any], domains: Mapping[str, str] | None = None) -> Iterator[InputBatch]:
    """The batches of a stream: dictionaries with pixel_values, pairs (images, labels), or tensors of images.

    >>> import torch
    >>> from spear_hf.evaluation.input_batch import input_batches
    >>> loader = torch.utils.data.DataLoader([{"pixel_values": torch.zeros(3, 8, 8), "labels": k} for k in range(3)], 2)
    >>> [(batch.names, batch.labels.tolist()) for batch in input_batches(loader)]
    [(['0', '1'], [0, 1]), (['2'], [2])]

    Args:
        stream: of `load_stream`, a DataLoader, or any iterable. A dictionary may also hold labels (or label), names,
            domain and is_domain_start, and what a model of several inputs takes beside images.
        domains: name of a domain in the stream -> name in the batches.

    Raises:
        DataError: something else.
    """
    count, last = 0, None
    for item in stream:
        batch = _as_mapping(item)
        x = batch["pixel_values"]
        labels = batch.get("labels", batch.get("label"))
        names = batch.get("names")
        names = [str(count + i) for i in range(len(x))] if names is None else [str(name) for name in names]
        domain = str(batch.get("domain", UNNAMED))
        starts = bool(batch.get("is_domain_start", domain != last))
        if len(names) != len(x):
            raise DataError(f"a batch has {len(x)} images and {len(names)} names; give one for each, or none")
        labels = None if labels is None else torch.as_tensor(labels)
        further = {name: v for name, v in batch.items() if name not in ("pixel_values", *OF_STREAMS)}
        yield InputBatch(x, labels, names, (domains or {}).get(domain, domain), starts, further)
        count, last = count + len(x), domain


def _as_mapping(item: Any) -> Mapping[str, Any]:
    """The item with pixel_values, a tensor, among its keys."""
    if isinstance(item, Tensor):
        item = {"pixel_values": item}
    elif isinstance(item, (tuple, list)) and len(item) in (1, 2) and isinstance(item[0], Tensor):
        item = dict(zip(("pixel_values", "labels"), item, strict=False))
    if isinstance(item, Mapping) and isinstance(item.get("pixel_values"), Tensor):
        return item
    came = f"a dictionary with {sorted(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
    raise DataError(
        f"the stream gave {came}; allowed are dictionaries with pixel_values, a tensor (B, C, H, W), pairs "
        "(images, labels), and tensors of images"
    )
