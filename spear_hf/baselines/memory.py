"""CategoryMemory: some images of the stream, balanced over the classes, timely and certain (RoTTA's CSTU)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spear_hf.baselines.part import Part


@dataclass
class CategoryMemory(Part):
    """Up to N images, of each predicted class about N / K, old and uncertain ones leaving first.

    An image has the score lambda_t / (1 + exp(-age / N)) + lambda_u H / log K, its age being how many images have come
    since. A new one of a class below its quota is taken where there is room, or in place of the highest score among the
    largest classes; of a class at its quota, in place of the highest score of its own class; in both cases only if that
    score is above its own.

    Args:
        capacity: N.
        lambda_t: weight of age.
        lambda_u: weight of uncertainty.
    """

    capacity: int = 64
    lambda_t: float = 1.0
    lambda_u: float = 1.0
    seen: int = field(init=False, default=0)
    images: list[Tensor] = field(init=False, default_factory=list)
    labels: list[int] = field(init=False, default_factory=list)
    uncertainties: list[float] = field(init=False, default_factory=list)
    ages: list[int] = field(init=False, default_factory=list)

    def add(self, image: Tensor, label: int, uncertainty: float, classes: int) -> bool:
        """Whether the image was taken; all others are one older.

        Args:
            image: (C, H, W).
            label: what was predicted.
            uncertainty: entropy in nats.
            classes: K.
        """
        rivals = self._rivals(label, classes)
        taken = True
        if rivals:
            worst = max(rivals, key=lambda i: self._score(self.ages[i], self.uncertainties[i], classes))
            score = self._score(self.ages[worst], self.uncertainties[worst], classes)
            taken = score > self._score(0, uncertainty, classes)
            if taken:
                self._remove(worst)
        if taken:
            self.images.append(image.clone())
            self.labels.append(label)
            self.uncertainties.append(uncertainty)
            self.ages.append(0)
        self.ages = [age + 1 for age in self.ages]
        self.seen += 1
        return taken

    def timeliness(self, device: torch.device) -> Tensor:
        """exp(-age / N) / (1 + exp(-age / N)) of each image, (n,) in (0, 1/2)."""
        return torch.sigmoid(-torch.tensor(self.ages, dtype=torch.float32, device=device) / self.capacity)

    def _rivals(self, label: int, classes: int) -> list[int]:
        """The places of which one must be given up for an image of this class; empty where there is room."""
        if self.labels.count(label) >= self.capacity / classes:
            return [i for i, other in enumerate(self.labels) if other == label]
        if len(self.images) < self.capacity:
            return []
        most = max(self.labels.count(other) for other in self.labels)
        return [i for i, other in enumerate(self.labels) if self.labels.count(other) == most]

    def _score(self, age: int, uncertainty: float, classes: int) -> float:
        return self.lambda_t / (1 + math.exp(-age / self.capacity)) + self.lambda_u * uncertainty / math.log(classes)

    def _remove(self, place: int) -> None:
        for kept in (self.images, self.labels, self.uncertainties, self.ages):
            del kept[place]
