"""The batches of a source under a schedule: lazy, the same for any number of workers, resumable from one integer."""

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from hashlib import blake2b
from itertools import count
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.content import content_hash
from spear_hf.data.domains import Domain
from spear_hf.data.labels import LabelMap
from spear_hf.data.processor import Processor
from spear_hf.data.rendering import Recipe, render
from spear_hf.data.schedule import BatchPlan, Schedule
from spear_hf.data.sources import MISSING, ImageSource
from spear_hf.errors import DataError, SpearError


class ImageBatch(TypedDict):
    """One batch of a stream.

    >>> import numpy as np
    >>> from spear_hf import load_stream
    >>> from datasets import Dataset
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> next(iter(load_stream(rows, corruptions="fog")))["domain"]
    'fog/5'
    """

    pixel_values: Tensor  # (B, 3, H, W) float32 from the processor; (B, H, W, 3) uint8 without one
    labels: Tensor | None  # (B,) int64, for evaluation only
    index: Tensor  # (B,) int64, sample ids of the source
    names: list[str]  # B names of images: the path relative to the source, or the number of the row
    domain: str  # "gaussian_noise/5"
    domain_index: Tensor  # (B,) int64 into `stream.domains`
    is_domain_start: bool
    position: int  # of the first image, counted from the start of the stream
    batch: int  # number of the batch, counted from 0


class ImageStream:
    """Batches of a source under a schedule of corruptions; `load_stream` makes one.

    Iteration starts at batch 0. The first iteration after `load_state_dict` starts at the batch of that state.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> stream = load_stream(rows, corruptions="fog, contrast", batch_size=2)
    >>> [(batch["domain"], len(batch["index"])) for batch in stream]
    [('fog/5', 2), ('fog/5', 1), ('contrast/5', 2), ('contrast/5', 1)]

    Args:
        source: the images.
        schedule: which images come when, under which corruption.
        recipe: how they are corrupted.
        protocol: its name; under "single", a method is reset at every `is_domain_start`.
        label_map: from the labels of the source to those of the model; None for a source without labels.
        processor: from uint8 images to pixel_values; None returns the images as they are.
        skip_broken: leave out images that cannot be decoded and add their ids to `skipped`, instead of raising.
        num_workers: processes that prepare batches in advance; the batches are the same for any number.
        notes: lines for people: how labels were matched, and what else was chosen.
    """

    def __init__(
        self,
        source: ImageSource,
        schedule: Schedule,
        recipe: Recipe,
        *,
        protocol: str,
        label_map: LabelMap | None = None,
        processor: Processor | None = None,
        skip_broken: bool = False,
        num_workers: int = 0,
        notes: Sequence[str] = (),
    ) -> None:
        self.notes = list(notes)
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
        """Names of the domains, without repetition; `domain_index` counts them."""
        return [str(domain) for domain in self.schedule.domains]

    @property
    def class_subset(self) -> Tensor | None:
        """(S,) int64, the classes that occur; None if all of the model do. `evaluate` can be restricted to them."""
        subset = None if self._label_map is None else self._label_map.subset
        return None if subset is None else torch.from_numpy(subset)

    @property
    def has_labels(self) -> bool:
        """True if batches have labels."""
        return self._label_map is not None

    @property
    def skipped_names(self) -> list[str]:
        """The names of the skipped images, in the order of the source."""
        return self._source.names(np.array(sorted(self.skipped), dtype=np.int64), self.schedule.domains[0])

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes, if labels are numbered as in the source; otherwise None."""
        is_own = self._label_map is not None and self._label_map.how == "source"
        return list(self._source.classes) if is_own and self._source.classes is not None else None

    def __len__(self) -> int:
        """Number of batches; TypeError for an endless stream."""
        if (number := self.schedule.num_batches) is None:
            raise TypeError("an endless stream has no length; pass cycles= to load_stream, or itertools.islice it")
        return number

    def batch(self, number: int) -> ImageBatch:
        """Batch `number`; it does not depend on the batches that were read before."""
        made, broken = self._make(number)
        self.skipped.update(broken)
        return made

    def __iter__(self) -> Iterator[ImageBatch]:
        numbers, self._start = self._numbers(self._start), 0
        starts_domain = False
        for number, item in zip(numbers, self._items(numbers), strict=False):
            if isinstance(item, SpearError):
                raise item
            made, broken = item
            self.skipped.update(broken)
            self._next = number + 1
            starts_domain |= made["is_domain_start"]
            # a batch of broken images only is left out, but not from a shard: other processes may have images of it
            if broken and not len(made["index"]) and self._world == 1:
                continue
            made["is_domain_start"], starts_domain = starts_domain, False
            yield made

    def shard(self, rank: int, world: int) -> "ImageStream":
        """The stream of process `rank` of `world`: its part of every batch; the batches are the same for any `world`.

        The sizes of the parts differ by at most one image, and may be 0. The state of a shard is the state of the
        stream, so a run may continue with another number of processes.

        Raises:
            DataError: a rank outside [0, world).
        """
        if not 0 <= rank < world:
            raise DataError(f"rank={rank} and world={world}; ranks count from 0 to world - 1")
        part = copy(self)
        part.skipped = set()
        part._rank, part._world = rank, world
        return part

    def _numbers(self, start: int) -> Iterable[int]:
        end = self.schedule.num_batches
        return _CountFrom(start) if end is None else range(start, end)

    def _items(self, numbers: Iterable[int]) -> Iterable[Any]:
        if self.num_workers == 0:
            return map(_BatchDataset(self).__getitem__, numbers)
        loader: Any = torch.utils.data.DataLoader  # its type stubs require a torch Dataset
        return loader(
            _BatchDataset(self),
            sampler=numbers,
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_identity,
            generator=torch.Generator(),  # otherwise it draws its seed from, and so changes, the global generator
        )

    def _make(self, number: int) -> tuple[ImageBatch, list[int]]:
        """Batch `number`, and the sample ids of its broken images."""
        plan = self.schedule.batch(number)
        part = plan.part(self._rank, self._world)
        images, broken = self._render(part, self._skip_broken)
        if self._skip_broken:
            broken += self._drop_unlabelled(part, images)
        kept = [place for place, image in enumerate(images) if image is not None]
        ids, domains = part.ids[kept], part.domains[kept]
        made = ImageBatch(
            pixel_values=self._pixels([image for image in images if image is not None], plan),
            labels=self._labels(ids, [self.schedule.domains[i] for i in domains]),
            index=torch.from_numpy(ids),
            names=self._names(ids, [self.schedule.domains[i] for i in domains]),
            domain=plan.domain,
            domain_index=torch.from_numpy(domains),
            is_domain_start=plan.is_domain_start,
            position=part.position,
            batch=number,
        )
        return made, broken

    def _render(self, part: BatchPlan, skip_broken: bool) -> tuple[list[np.ndarray | None], list[int]]:
        """The corrupted uint8 images of a part of a batch, and the sample ids of its broken images."""
        domains = [self.schedule.domains[i] for i in part.domains]
        return render(self._source, self.recipe, part.ids, domains, skip_broken=skip_broken)

    def _drop_unlabelled(self, part: BatchPlan, images: list[np.ndarray | None]) -> list[int]:
        """Remove the images whose label is an empty cell, and return their sample ids."""
        missing: list[int] = []
        for domain in np.unique(part.domains).tolist() if self._label_map is not None else ():
            places = np.flatnonzero(part.domains == domain)
            labels = self._source.labels(part.ids[places], self.schedule.domains[domain])
            for place in places[labels == MISSING] if labels is not None else ():
                if images[place] is not None:
                    images[place] = None
                    missing.append(int(part.ids[place]))
        return missing

    def _pixels(self, images: list[np.ndarray], plan: BatchPlan) -> Tensor:
        """Pixel values of images of a batch; without images, an empty tensor of the shape that the batch has."""
        if self.processor is not None:
            return self.processor(images)
        if images:
            return _stack(images)
        first = plan._replace(ids=plan.ids[:1], domains=plan.domains[:1])
        one, _ = self._render(first, skip_broken=False)
        return _stack([image for image in one if image is not None])[:0]

    def _labels(self, ids: np.ndarray, domains: list[Domain]) -> Tensor | None:
        """(n,) int64 labels, in the numbering of the model, of sample ids under their domains."""
        if self._label_map is None:
            return None
        labels = torch.empty(len(ids), dtype=torch.int64)
        for domain in dict.fromkeys(domains):
            places = [place for place, other in enumerate(domains) if other == domain]
            if (found := self._source.labels(ids[places], domain)) is not None:
                labels[places] = torch.from_numpy(self._label_map(found))
        return labels

    def _names(self, ids: np.ndarray, domains: list[Domain]) -> list[str]:
        """n names of sample ids under their domains."""
        names = [""] * len(ids)
        for domain in dict.fromkeys(domains):
            places = [place for place, other in enumerate(domains) if other == domain]
            for place, name in zip(places, self._source.names(ids[places], domain), strict=True):
                names[place] = name
        return names

    def state_dict(self) -> dict[str, Any]:
        """The number of the next batch, the skipped ids, and a hash of everything that determines the batches."""
        return {"next_batch": self._next, "skipped": sorted(self.skipped), "spec": self.spec_hash}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration starts at the batch of `state`.

        Raises:
            DataError: `state` is of a stream with other images, order, corruptions or preprocessing.
        """
        if state["spec"] != self.spec_hash:
            raise DataError(
                f"the state is of another stream ({state['spec']}, this one is {self.spec_hash}); "
                "pass load_stream the arguments that the state was saved with: describe() shows them"
            )
        self._start = self._next = int(state["next_batch"])
        self.skipped = set(state.get("skipped", ()))

    @cached_property
    def spec_hash(self) -> str:
        """A hash of everything that determines the batches, the images included: equal for two equal streams."""
        facts = self.describe()
        if facts["processor"] is not None:
            del facts["processor"]["origin"]  # the model may be moved to another folder
        facts["content"] = content_hash(self._source, self.schedule)
        return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Everything that a rerun needs, JSON-ready."""
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
        """A hash of all labels in the first domain; None if the source cannot list its labels in advance."""
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


class _BatchDataset:
    """A map-style dataset whose items are whole batches, so a DataLoader keeps their order for any number of workers.

    An error of this package is returned as an item, because a DataLoader would wrap its message in a traceback.
    """

    def __init__(self, stream: ImageStream) -> None:
        self.stream = copy(stream)

    def __getitem__(self, number: int) -> tuple[ImageBatch, list[int]] | SpearError:
        try:
            return self.stream._make(number)  # pyright: ignore[reportPrivateUsage]
        except SpearError as error:
            return error


class _CountFrom:
    """start, start + 1, ... without end; unlike itertools.count, every iteration begins at `start`."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return count(self.start)


def _identity(item: Any) -> Any:
    return item
