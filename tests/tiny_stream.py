"""A stream of random images in two domains, with what `evaluate` asks of one."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class TinyStream:
    """Batches of the given global sizes for each domain; rank r of W takes its slice of each."""

    def __init__(self, sizes: tuple[int, ...] = (16, 5, 1), protocol: str = "single") -> None:
        self.sizes = sizes
        self.protocol = protocol
        self.rank, self.count = 0, 1
        self.next = 0
        self.stop_after: int | None = None

    def shard(self, rank: int, count: int) -> "TinyStream":
        shard = TinyStream(self.sizes, self.protocol)
        shard.rank, shard.count, shard.next = rank, count, self.next
        return shard

    def __len__(self) -> int:
        return 2 * len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.next, len(self)):
            self.next = number + 1
            yield self.batch(number)

    def batch(self, number: int) -> dict[str, Any]:
        domain, place = divmod(number, len(self.sizes))
        images, labels = images_and_labels(number, self.sizes[place])
        part = torch.tensor_split(torch.arange(len(labels)), self.count)[self.rank]
        return {
            "pixel_values": images[part],
            "labels": labels[part],
            "domain": f"domain{domain}",
            "is_domain_start": place == 0,
        }

    def describe(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes), "protocol": self.protocol}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Killed(Exception):
    pass


class KilledStream(TinyStream):
    """Dies as it is asked for batch 4, in the second domain."""

    def batch(self, number: int) -> dict[str, Any]:
        if number == 4:
            raise Killed
        return super().batch(number)


def images_and_labels(seed: int, size: int) -> tuple[Tensor, Tensor]:
    """(size, 3, 32, 32) away from what the running statistics of a TinyNet saw, and labels of its ten classes."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, 32, 32, generator=generator) * 1.5 - 0.5
    return images, torch.randint(10, (size,), generator=generator)
