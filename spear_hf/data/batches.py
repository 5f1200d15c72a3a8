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

from spear_hf.data.domains import Domain
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
        label_map: from the source's labels to the model's numbering; None for a source without labels.
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
        self.recipe = recipe
        self._source = source
        self._label_map = label_map
        self._skip_broken = skip_broken
        self._rank, self._world = 0, 1
        self._start = self._next = 0

    @property
    def domains(self) -> list[str]:
        """Names of the domains, each once, in the order in which `domain_index` counts them."""
        return [str(domain) for domain in self.schedule.domains]

    @property
    def class_subset(self) -> Tensor | None:
        """(S,) int64 classes of the model that can occur, where the source has fewer: mask the other logits."""
        subset = None if self._label_map is None else self._label_map.subset
        return None if subset is None else torch.from_numpy(subset)

    @property
    def has_labels(self) -> bool:
        """Whether batches carry labels."""
        return self._label_map is not None

    @property
    def classes(self) -> list[str] | None:
        """Names that labels count through, where they are the source's own."""
        is_own = self._label_map is not None and self._label_map.how == "source"
        return list(self._source.classes) if is_own and self._source.classes is not None else None

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
        starts_domain = False
        for number, item in zip(numbers, self._items(numbers), strict=False):
            if isinstance(item, SpearError):
                raise item
            made, broken = item
            self.skipped.update(broken)
            self._next = number + 1
            starts_domain |= made["is_domain_start"]
            if broken and not len(made["index"]) and self._world == 1:
                continue  # every image was broken; with several processes the others may have some, and wait
            made["is_domain_start"], starts_domain = starts_domain, False
            yield made

    def shard(self, rank: int, world: int) -> "Stream":
        """What process `rank` of `world` sees: its slice of every batch, the same batches for any `world`.

        Slices differ by one image at most; where a batch has fewer images than there are processes, some are empty.
        The state of a shard is that of the stream: a run may go on with another number of processes.
        """
        if not 0 <= rank < world:
            raise DataError(f"rank={rank} and world={world}; ranks count from 0 to world - 1")
        part = copy(self)
        part.skipped = set()
        part._rank, part._world = rank, world
        return part

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
        part = plan.part(self._rank, self._world)
        domains = [self.schedule.domains[i] for i in part.domains]
        images, broken = render(self._source, self.recipe, part.ids, domains, skip_broken=self._skip_broken)
        kept = [place for place, image in enumerate(images) if image is not None]
        made = StreamBatch(
            pixel_values=self._pixels([image for image in images if image is not None], plan),
            labels=self._labels(part.ids[kept], [domains[place] for place in kept]),
            index=torch.from_numpy(part.ids[kept]),
            domain=plan.domain,
            domain_index=torch.from_numpy(part.domains[kept]),
            is_domain_start=plan.is_domain_start,
            position=part.position,
            batch=number,
        )
        return made, broken

    def _pixels(self, images: list[np.ndarray], plan: BatchPlan) -> Tensor:
        """The pixel values of some images of a batch; of none, in the shape that the others of the batch have."""
        if self.processor is not None:
            return self.processor(images)
        if images:
            return _stack(images)
        one, _ = render(self._source, self.recipe, plan.ids[:1], [self.schedule.domains[plan.domains[0]]])
        return _stack([image for image in one if image is not None])[:0]

    def _labels(self, ids: np.ndarray, domains: list[Domain]) -> Tensor | None:
        """(n,) int64 of some sample ids, each under its domain, in the model's numbering."""
        if self._label_map is None:
            return None
        labels = torch.empty(len(ids), dtype=torch.int64)
        for domain in dict.fromkeys(domains):
            places = [place for place, other in enumerate(domains) if other == domain]
            if (found := self._source.labels(ids[places], domain)) is not None:
                labels[places] = torch.from_numpy(self._label_map(found))
        return labels

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
            "images_per_cycle": schedule.images_per_cycle,
            "cycles": schedule.cycles,
            "batch_size": schedule.batch_size,
            "order_hash": schedule.order_hash(),
            "corruption": self.recipe.describe(schedule.domains),
            "labels": None if self._label_map is None else self._label_map.how,
            "label_hash": self._label_hash(),
            "processor": None if self.processor is None else self.processor.describe(),
            "skip_broken": self._skip_broken,
        }

    def _label_hash(self) -> str | None:
        """A hash of all labels in the first domain; None for a source that cannot tell them beforehand."""
        if self._label_map is None or self._source.window is not None:
            return None
        labels = self._source.labels(np.arange(len(self._source)), self.schedule.domains[0])
        return None if labels is None else blake2b(labels.astype("<i8").tobytes(), digest_size=8).hexdigest()


def _stack(images: list[np.ndarray]) -> Tensor:
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        shown = ", ".join(f"{height}x{width}" for height, width in sorted(sizes)[:4])
        raise DataError(f"images of several sizes ({shown}) do not stack; pass processor=load_processor(model)")
    return torch.from_numpy(np.stack(images))


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
