"""Corrupting one image or a batch: draw the randomness per image, then apply it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import Constants, at_severity
from spear_hf.data.corruptions.presets import SMALLEST_SIDE, resolve_preset
from spear_hf.data.corruptions.table import Corruption, find_corruption
from spear_hf.errors import DataError

PIXELS_AT_ONCE = 32 * 32 * 32  # of a batch on a CPU: 400 kB in float32


def corrupt(
    image: np.ndarray,
    name: str,
    severity: float,
    rng: np.random.Generator,
    preset: str = "auto",
    *,
    frost_dir: str | Path | None = None,
) -> np.ndarray:
    """One corrupted image.

    Args:
        image: (H, W, 3) uint8, RGB.
        name: one of CORRUPTIONS or EXTRA_CORRUPTIONS.
        severity: in (0, 5]; 1..5 are the published levels, fractions interpolate their constants.
        rng: the randomness of this image, and of nothing else; see `sample_rng`.
        preset: whose constants; "auto" takes them by size: 224 imagenet, 32 cifar, 64 tiny.
        frost_dir: the official textures of frost; else SPEAR_FROST_DIR, else the made ones.

    Returns:
        (H, W, 3) uint8.

    Raises:
        DataError: an image, name, severity or preset that does not fit.
    """
    if not isinstance(image, np.ndarray):
        raise DataError(f"image is a {type(image).__name__}; pass an (H, W, 3) uint8 array, e.g. np.asarray(pil_image)")
    check_shape(tuple(image.shape), image.dtype, batched=False)
    return corrupt_batch(image[None], name, severity, [rng], preset, frost_dir=frost_dir)[0].numpy()


def corrupt_batch(
    images: Tensor | np.ndarray,
    name: str,
    severity: float,
    rngs: Sequence[np.random.Generator],
    preset: str = "auto",
    device: torch.device | str | None = None,
    *,
    frost_dir: str | Path | None = None,
) -> Tensor:
    """A corrupted batch; each image is what `corrupt` gives for it, whatever stands beside it.

    Randomness is drawn on the CPU and applied on `device`. On a CPU the bits are those of `corrupt`; another device
    may differ by one grey level where a value lies on the edge between two.

    Args:
        images: (B, H, W, 3) uint8, RGB.
        rngs: B generators, one per image.
        device: where to compute and to return; by default where the images are.

    Returns:
        (B, H, W, 3) uint8.
    """
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(np.array(images, order="C"))  # a copy: torch warns of arrays that are read-only
    if not isinstance(images, Tensor):
        raise DataError(f"images is a {type(images).__name__}; pass a (B, H, W, 3) uint8 tensor or array")
    check_shape(tuple(images.shape), images.dtype, batched=True)
    b, height, width, _ = images.shape
    check_generators(rngs, b)
    row = find_corruption(name)
    constants = at_severity(name, severity, resolve_preset(preset, height, width).name)
    draws = [row.draw(rng, height, width, constants) for rng in rngs]
    device = torch.device(device or images.device)
    computing = torch.device("cpu") if device.type == "mps" else device  # Metal has no float64
    return apply_draws(row, images.to(computing), constants, draws, frost_dir=frost_dir).to(device)


def apply_draws(
    row: Corruption,
    images: Tensor,
    constants: Constants,
    draws: Sequence[tuple[np.ndarray, ...]],
    *,
    frost_dir: str | Path | None = None,
) -> Tensor:
    """The corruption of (B, H, W, 3) images by randomness that was drawn before, one tuple of arrays per image.

    On a CPU a batch is computed in parts that stay in its cache.
    """
    options = {"frost_dir": frost_dir} if row.name == "frost" else {}
    _, height, width, _ = images.shape
    part = max(1, PIXELS_AT_ONCE // (height * width)) if images.device.type == "cpu" else len(images)
    images, results = images.contiguous(), [images[:0]]
    for start in range(0, len(images), part):
        stacked = [torch.from_numpy(np.stack(arrays)) for arrays in zip(*draws[start : start + part], strict=True)]
        moved = (draw.to(images.device) for draw in stacked)
        results.append(row.apply(images[start : start + part], constants, *moved, **options))
    return torch.cat(results)


def check_shape(shape: tuple[int, ...], dtype: object, *, batched: bool) -> None:
    """Refuse what is not uint8 RGB with the channels last.

    Raises:
        DataError: another dtype, a grey, RGBA or channels-first image, or one that is too small.
    """
    wanted = "(B, H, W, 3)" if batched else "(H, W, 3)"
    what = f"images of shape {shape} and dtype {str(dtype).removeprefix('torch.')}"
    if dtype not in (torch.uint8, np.dtype(np.uint8)):
        raise DataError(
            f"{what}, but corruptions are defined on uint8 pixels 0..255 (a float may be NaN or of any range); "
            f"corrupt before normalising, or convert with (x * 255).round().clip(0, 255).astype('uint8')"
        )
    if len(shape) != (4 if batched else 3) or shape[-1] != 3:
        raise DataError(
            f"{what}, but {wanted} RGB is needed; convert grey, RGBA or palette images with image.convert('RGB'), "
            f"and channels-first arrays by moving the channels last"
        )
    height, width = shape[-3:-1]
    if min(height, width) < SMALLEST_SIDE:
        raise DataError(f"{what}, but both sides need {SMALLEST_SIDE} pixels or more; enlarge the image first")


def check_generators(rngs: Sequence[np.random.Generator], count: int) -> None:
    """Refuse anything but one generator per image.

    Raises:
        DataError: seeds, a single generator, too few or too many.
    """
    if isinstance(rngs, np.random.Generator) or not all(isinstance(rng, np.random.Generator) for rng in rngs):
        raise DataError(f"rngs={rngs!r}, but one np.random.Generator per image is needed; make them with sample_rng")
    if len(rngs) != count:
        raise DataError(f"{len(rngs)} generators for {count} images; pass one per image, see sample_rng")
