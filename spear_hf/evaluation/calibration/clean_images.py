"""CleanImages: a few hundred clean images as pixels, which can be corrupted, and prepared for the model again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt_batch, sample_rng
from spear_hf.data.corruptions.constants import resolve_preset
from spear_hf.data.processor import Processor, grey, load_processor
from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation.calibration import LEAST
from spear_hf.evaluation.input_batch import input_batches
from spear_hf.utils.model_inputs import images_alone

OUTSIDE = 0.02  # how far pixels may be outside [0, 1]: rounding, and half precision


@dataclass(frozen=True)
class CleanImages:
    """Clean images of one size, and how the model's input is made of them.

    Args:
        pixels: (N, H, W, 3) uint8.
        mean: of the input, per channel, for pixels in [0, 1].
        std: likewise.
        batch_size: in how many at a time they came.
        device: of the input.
        dtype: likewise.

    >>> import torch
    >>> from spear_hf import load_processor
    >>> from spear_hf.evaluation.calibration.clean_images import CleanImages
    >>> half = load_processor(None, mean=[0.5] * 3, std=[0.5] * 3, size=8)
    >>> clean = CleanImages.read([torch.full((32, 3, 8, 8), 0.6)] * 2, None, processor=half)
    >>> clean.pixels[0, 0, 0].tolist(), clean.batch_size
    ([204, 204, 204], 32)
    """

    pixels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    @classmethod
    def read(
        cls, images: Iterable[Any], model: nn.Module | None, *, processor: Processor | None = None, limit: int = 256
    ) -> "CleanImages":
        """The first `limit` images of a stream.

        Args:
            images: of `load_stream`, a DataLoader, or any iterable that `evaluate` takes.
            model: whose preprocessing is taken, and on whose device images are moved.
            processor: what the images were prepared with; default: the stream's own, or that of the model.
            limit: how many to read.

        Raises:
            DataError: too few, corrupted ones, or ones that are no clean images under this mean and standard deviation.
            InputError: batches that also hold what the model takes beside images.
        """
        if not isinstance(limit, int) or limit < LEAST:
            raise ConfigError(f"limit={limit!r} is not allowed; give a number of images, at least {LEAST}")
        prepared: Processor = processor or getattr(images, "processor", None) or load_processor(model)
        found: list[Tensor] = []
        for batch in input_batches(images):
            x = images_alone(batch.inputs(), None, model, "calibrate")
            _refuse(x, batch.domain, found)
            found.append(x)
            if sum(map(len, found)) >= limit:
                break
        x = torch.cat(found)[:limit] if found else torch.empty(0)
        if len(x) < LEAST:
            raise DataError(
                f"{len(x)} clean images are too few; give at least {LEAST}, better a few hundred, or go without: "
                "SpearConfig() needs none"
            )
        device = next((p.device for p in model.parameters()), x.device) if model is not None else x.device
        pixels = _pixels(x.float().cpu(), prepared.mean, prepared.std)
        return cls(pixels, prepared.mean, prepared.std, len(found[0]), device, x.dtype)

    def __len__(self) -> int:
        return len(self.pixels)

    def inputs(
        self,
        pixels: Tensor,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Tensor:
        """(B, C, H, W) of uint8 pixels (B, H, W, 3), with another mean and standard deviation if given."""
        channels_first = pixels.movedim(-1, 1)
        x = grey(channels_first) if len(self.mean) == 1 else channels_first
        m, s = (torch.tensor(v).view(-1, 1, 1) for v in (mean or self.mean, std or self.std))
        return x.float().div(255).sub(m).div(s).to(self.device, self.dtype)

    def corrupted(self, corruption: str, severity: float, seed: int = 0) -> Tensor:
        """(N, H, W, 3) uint8 under a corruption, with the constants that fit their size."""
        preset = resolve_preset("auto", *self.pixels.shape[1:3]).name
        rngs = [sample_rng(seed, preset, corruption, severity, i) for i in range(len(self))]
        return corrupt_batch(self.pixels, corruption, severity, rngs, preset)


def _refuse(x: Tensor, domain: str, before: Sequence[Tensor]) -> None:
    """Raise DataError for a batch of which no clean pixels can be made."""
    if domain.split("/")[0] in CORRUPTIONS | EXTRA_CORRUPTIONS:
        raise DataError(f"images under {domain!r} are not clean; pass load_stream(..., corruptions='clean')")
    if x.dim() != 4:
        raise DataError(f"a batch of images has shape {tuple(x.shape)}; give batches (B, C, H, W), such as x.split(16)")
    if not x.is_floating_point():
        came = str(x.dtype).removeprefix("torch.")
        raise DataError(
            f"images are {came}; give what the model takes: load_stream(..., processor=load_processor(model))"
        )
    if before and x.shape[1:] != before[0].shape[1:]:
        raise DataError(f"images of {tuple(before[0].shape[1:])} and {tuple(x.shape[1:])}; give images of one size")


def _pixels(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(N, H, W, 3) uint8 of the model's input (N, C, H, W)."""
    if x.dim() != 4 or x.shape[1] != len(mean):
        raise DataError(
            f"images of shape {tuple(x.shape)} do not fit a mean of {len(mean)} channels; give (N, {len(mean)}, H, W)"
        )
    m, s = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))
    x = x * s + m
    low, high = float(x.min()), float(x.max())
    if not (low >= -OUTSIDE and high <= 1 + OUTSIDE):  # NaN too
        raise DataError(
            f"pixels reach from {low:.2f} to {high:.2f} with mean {shown(mean)} and standard deviation {shown(std)}, "
            "and those of images are in [0, 1], so the images were prepared with others; pass "
            "processor=load_processor(None, mean=..., std=..., size=...) with what they were prepared with"
        )
    return x.expand(-1, 3, -1, -1).movedim(1, -1).mul(255).round().clamp(0, 255).to(torch.uint8).contiguous()


def shown(values: Sequence[float]) -> str:
    """Numbers for a person: one if all are equal.

    >>> shown((0.5, 0.5, 0.5)), shown((0.485, 0.456, 0.406))
    ('0.5', '0.485,0.456,0.406')
    """
    short = [f"{v:.4g}" for v in values]
    return short[0] if len(set(short)) == 1 else ",".join(short)
