"""The batches of a source under a schedule: lazy, the same for any number of workers, resumable from one integer."""

import json
from collections.abc import Iterable, Iterator
from copy import copy
from functools import cached_property
from hashlib import blake2b
from itertools import count
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.labels import LabelMap
from spear_hf.data.processor import Processor
from spear_hf.data.rendering import Recipe, render
from spear_hf.data.schedule import BatchPlan, Schedule
from spear_hf.data.sources import Source
from spear_hf.errors import DataError, SpearError


class StreamBatch(TypedDict):
    """What a stream yields."""

    pixel_values: Tensor  # (B, 3, H, W) float32 by the processor; (B, H, W, 3) uint8 without one
    labels: Tensor | None  # (B,) int64, for evaluation alone
    index: Tensor  # (B,) int64, sample ids of the source
    domain: str  # "gaussian_noise/5"
    domain_index: Tensor  # (B,) int64 into `stream.domains`
    is_domain_start: bool
    position: int  # of the first image, counted from the start of the stream
    batch: int  # number of the batch, counted from 0


class Stream:
    """Batches of a source under a schedule of corruptions; `load_stream` makes one.

    Iterating starts at batch 0, or, once after `load_state_dict`, at the batch that the state names.

    Args:
        source: the images.
        schedule: which of them come when, under which corruption.
        recipe: how they are corrupted.
        protocol: its name; under "single" a method is reset at every `is_domain_start`.
        labels: (N,) int64 by sample id, in the model's numbering, or None.
        label_map: how the source's classes were found among the model's.
        processor: from uint8 images to pixel_values; None leaves them as they are.
        skip_broken: leave broken images out, and keep their ids in `skipped`, rather than raise.
        num_workers: processes that prepare batches ahead; the batches are the same for any number.
    """

    def __init__(
        self,
        source: Source,
        schedule: Schedule,
        recipe: Recipe,
        *,
        protocol: str,
        labels: np.ndarray | None = None,
        label_map: LabelMap | None = None,
        processor: Processor | None = None,
        skip_broken: bool = False,
        num_workers: int = 0,
    ) -> None:
        self.protocol = protocol
        self.processor = processor
        self.schedule = schedule
        self.num_workers = num_workers
        self.skipped: set[int] = set()
        self._source, self._recipe = source, recipe
        self._labels, self._label_map = labels, label_map
        self._skip_broken = skip_broken
        self._start = self._next = 0

    @property
    def domains(self) -> list[str]:
        """Names of the domains, each once, in the order in which `domain_index` counts them."""
        return [str(domain) for domain in self.schedule.plan.domains]

    @property
    def class_subset(self) -> Tensor | None:
        """(S,) int64 classes of the model that can occur, where the source has fewer: mask the other logits."""
        subset = None if self._label_map is None else self._label_map.subset
        return None if subset is None else torch.from_numpy(subset)

    def __len__(self) -> int:
        """Number of batches; TypeError for an endless stream."""
        if (number := self.schedule.num_batches) is None:
            raise TypeError("an endless stream has no length; pass cycles= to load_stream, or itertools.islice it")
        return number

    def batch(self, number: int) -> StreamBatch:
        """Batch `number`, whatever was asked for before."""
        made, broken = self._make(number)
        self.skipped.update(broken)
        return made

    def __iter__(self) -> Iterator[StreamBatch]:
        numbers, self._start = self._numbers(self._start), 0
        for number, item in zip(numbers, self._items(numbers), strict=False):
            if isinstance(item, SpearError):
                raise item
            made, broken = item
            self.skipped.update(broken)
            self._next = number + 1
            yield made

    def _numbers(self, start: int) -> Iterable[int]:
        end = self.schedule.num_batches
        return _From(start) if end is None else range(start, end)

    def _items(self, numbers: Iterable[int]) -> Iterable[Any]:
        if self.num_workers == 0:
            return map(_Batches(self).__getitem__, numbers)
        loader: Any = torch.utils.data.DataLoader  # its stubs want a torch Dataset
        return loader(
            _Batches(self),
            sampler=numbers,
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_as_is,
            generator=torch.Generator(),  # else it draws from, and so moves, the global generator
        )

    def _make(self, number: int) -> tuple[StreamBatch, list[int]]:
        plan = self.schedule.batch(number)
        pixels, kept, broken = self._pixels(plan)
        ids = plan.ids[kept]
        made = StreamBatch(
            pixel_values=pixels,
            labels=None if self._labels is None else torch.from_numpy(self._labels[ids]),
            index=torch.from_numpy(ids),
            domain=plan.domain,
            domain_index=torch.from_numpy(plan.domains[kept]),
            is_domain_start=plan.is_domain_start,
            position=plan.position,
            batch=number,
        )
        return made, broken

    def _pixels(self, plan: BatchPlan) -> tuple[Tensor, list[int], list[int]]:
        """The pixel values of a batch, the places in it that could be decoded, and the sample ids that could not."""
        domains = [self.schedule.plan.domains[i] for i in plan.domains]
        images, broken = render(self._source, self._recipe, plan.ids, domains, skip_broken=self._skip_broken)
        kept = [place for place, image in enumerate(images) if image is not None]
        whole = [image for image in images if image is not None]
        if not whole:
            raise DataError(f"no image of batch {plan.number} could be decoded; repair the source")
        if self.processor is not None:
            return self.processor(whole), kept, broken
        return _stack(whole), kept, broken

    def state_dict(self) -> dict[str, Any]:
        """The number of the next batch, and a hash of all that decides what the batches are."""
        return {"next_batch": self._next, "spec": self.spec_hash}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, in the next iteration, where the stream that `state` came from stood.

        Raises:
            DataError: `state` is of a stream with other images, order, corruptions or preprocessing.
        """
        if state["spec"] != self.spec_hash:
            raise DataError(
                f"the state is of another stream ({state['spec']}, this one is {self.spec_hash}); "
                "pass load_stream the arguments that the state was saved with: describe() shows them"
            )
        self._start = self._next = int(state["next_batch"])

    @cached_property
    def spec_hash(self) -> str:
        """A hash of what decides the batches: equal for two streams that yield the same."""
        facts = self.describe()
        if facts["processor"] is not None:
            del facts["processor"]["origin"]  # a model may be moved to another folder
        return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Everything a rerun needs, JSON-ready."""
        schedule = self.schedule
        return {
            "source": self._source.describe(),
            "domains": self.domains,
            "protocol": self.protocol,
            "images_per_cycle": sum(segment.length for segment in schedule.plan.segments),
            "cycles": schedule.cycles,
            "batch_size": schedule.batch_size,
            "order_hash": schedule.order_hash(),
            "corruption": self._recipe.describe(schedule.plan.domains),
            "labels": None if self._label_map is None else self._label_map.how,
            "label_hash": None if self._labels is None else _hash(self._labels),
            "processor": None if self.processor is None else self.processor.describe(),
            "skip_broken": self._skip_broken,
        }


def _stack(images: list[np.ndarray]) -> Tensor:
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        shown = ", ".join(f"{height}x{width}" for height, width in sorted(sizes)[:4])
        raise DataError(f"images of several sizes ({shown}) do not stack; pass processor=load_processor(model)")
    return torch.from_numpy(np.stack(images))


def _hash(array: np.ndarray) -> str:
    return blake2b(np.ascontiguousarray(array, "<i8").tobytes(), digest_size=8).hexdigest()


class _Batches:
    """A stream as a map-style dataset whose items are whole batches: a DataLoader keeps their order for any workers.

    An error of this package is handed over as an item: a DataLoader would bury its message in a traceback.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = copy(stream)

    def __getitem__(self, number: int) -> tuple[StreamBatch, list[int]] | SpearError:
        try:
            return self.stream._make(number)  # pyright: ignore[reportPrivateUsage]
        except SpearError as error:
            return error


class _From:
    """start, start + 1, ... without end, as often as one asks."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return count(self.start)


def _as_is(item: Any) -> Any:
    return item
