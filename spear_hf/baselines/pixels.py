"""Pixels: the way from what a model takes back to images in [0, 1], where augmentations are at home."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spear_hf.baselines.part import Part
from spear_hf.errors import ConfigError, DataError


@dataclass
class Pixels(Part):
    """A normalisation, x = (pixel - mean) / std, and its inverse.

    Args:
        mean: per channel, on the [0, 1] scale.
        std: per channel, on the [0, 1] scale.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ConfigError(
                f"mean={self.mean}, std={self.std} are not allowed; give one number for each channel, std above 0"
            )

    def pixels(self, x: Tensor) -> Tensor:
        """Images on the [0, 1] scale; beyond it where x is."""
        return x * self._shaped(self.std, x) + self._shaped(self.mean, x)

    def normalized(self, pixels: Tensor) -> Tensor:
        """What the model takes."""
        return (pixels - self._shaped(self.mean, pixels)) / self._shaped(self.std, pixels)

    @staticmethod
    def _shaped(values: tuple[float, ...], x: Tensor) -> Tensor:
        return torch.tensor(values, dtype=x.dtype, device=x.device).view(-1, 1, 1)


def pixels_of(model: nn.Module, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Pixels:
    """The normalisation that was given, or else the one that `model` carries.

    Raises:
        ConfigError: it carries none. Augmenting as if there were none clips and recolours normalised images at random.
    """
    if mean is not None and std is not None:
        return Pixels(tuple(mean), tuple(std))
    from spear_hf.data.processor import load_processor

    try:
        found = load_processor(model)
    except DataError as error:
        raise ConfigError(
            f"augmentations need images in [0, 1], and nothing says how they were normalised ({error}); here pass "
            "mean= and std= for each channel: (0, 0, 0) and (1, 1, 1) where the model normalises by itself"
        ) from error
    return Pixels(found.mean, found.std)
