"""Corrupting one image or a batch: draw the random numbers of each image, then apply the corruption to all."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spear_hf.data.corruptions.constants import SMALLEST_SIDE, Constants, at_severity, resolve_preset
from spear_hf.data.corruptions.table import Corruption, find_corruption
from spear_hf.errors import DataError

PIXELS_AT_ONCE = 32 * 32 * 32  # of a batch on a CPU: 400 kB in float32
STREAM_VERSION = "v1"  # any change to the draws of a corruption needs a new version


def sample_rng(
    seed: int, preset: str, name: str, severity: float, sample_id: int, version: str = STREAM_VERSION
) -> np.random.Generator:
    """The random generator of one image: Philox, whose key is a hash of all arguments but the last id.

    Equal arguments give equal random numbers, for any number of workers, in any process and in any order. Takes about
    10 microseconds.

    >>> from spear_hf.data.corruptions import sample_rng
    >>> sample_rng(0, "cifar", "fog", 5, sample_id=17).integers(100, size=3).tolist()
    [37, 84, 98]

    Args:
        seed: of the stream.
        preset: "imagenet", "cifar" or "tiny".
        name: of the corruption.
        severity: in (0, 5].
        sample_id: in [0, 2**64), the number of the image in its source (not its position in a shuffled stream).
        version: of the draws.

    Raises:
        DataError: a sample id outside its range.
    """
    if not 0 <= sample_id < 2**64:
        raise DataError(f"sample_id={sample_id} is outside [0, 2**64); pass the image's row number in its source")
    text = f"spear-c/{version}|{seed}|{preset}|{name}|{severity:g}"
    digest = blake2b(text.encode(), digest_size=8).digest()
    key = np.array([int.from_bytes(digest, "little"), sample_id], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def corrupt(
    image: np.ndarray,
    name: str,
    severity: float,
    rng: np.random.Generator,
    preset: str = "auto",
    *,
    frost_dir: str | Path | None = None,
) -> np.ndarray:
    """(H, W, 3) uint8: one corrupted image.

    >>> import numpy as np
    >>> from spear_hf import corrupt
    >>> corrupt(np.zeros((32, 32, 3), np.uint8), "brightness", 5, np.random.default_rng(0))[0, 0].tolist()
    [76, 76, 76]

    Args:
        image: (H, W, 3) uint8, RGB.
        name: one of CORRUPTIONS or EXTRA_CORRUPTIONS.
        severity: in (0, 5]; 1..5 are the published levels, fractions interpolate their constants.
        rng: gives the random numbers of this image; `sample_rng` makes one.
        preset: "imagenet", "cifar" or "tiny" choose the constants; "auto" takes the nearest to the
            size: 224, 32 or 64 pixels.
        frost_dir: folder of the published frost textures; default: SPEAR_FROST_DIR, or synthetic textures.

    Raises:
        DataError: an image, name, severity or preset that does not fit.
    """
    if not isinstance(image, np.ndarray):
        raise DataError(f"image is a {type(image).__name__}; pass an (H, W, 3) uint8 array, e.g. np.asarray(pil_image)")
    _check_shape(tuple(image.shape), image.dtype, batched=False)
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
    """(B, H, W, 3) uint8: corrupted images; each is what `corrupt` returns for it, whatever else the batch holds.

    Random numbers are drawn on the CPU and applied on `device`. On a CPU the result has the same bits as `corrupt`;
    on another device, a value on the edge between two grey levels may differ by one.

    >>> import torch
    >>> from spear_hf.data.corruptions import corrupt_batch, sample_rng
    >>> rngs = [sample_rng(0, "cifar", "fog", 5, sample_id) for sample_id in (3, 8)]
    >>> corrupt_batch(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), "fog", 5, rngs).shape
    torch.Size([2, 32, 32, 3])

    Args:
        images: (B, H, W, 3) uint8, RGB.
        name: as for `corrupt`.
        severity: as for `corrupt`.
        rngs: B generators, one per image.
        preset: as for `corrupt`.
        device: where the result is computed and returned; default: where the images are.
        frost_dir: as for `corrupt`.

    Raises:
        DataError: images, name, severity, generators or preset that do not fit.
    """
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(np.array(images, order="C"))  # a copy, because torch warns about read-only arrays
    if not isinstance(images, Tensor):
        raise DataError(f"images is a {type(images).__name__}; pass a (B, H, W, 3) uint8 tensor or array")
    _check_shape(tuple(images.shape), images.dtype, batched=True)
    b, height, width, _ = images.shape
    _check_generators(rngs, b)
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
    """(B, H, W, 3) uint8: images corrupted with random numbers that were drawn before.

    On a CPU a batch is computed in parts that fit into the processor's cache.

    >>> import torch
    >>> from spear_hf.data.corruptions.apply import apply_draws
    >>> from spear_hf.data.corruptions import CORRUPTIONS
    >>> apply_draws(CORRUPTIONS["contrast"], torch.zeros(1, 32, 32, 3, dtype=torch.uint8), (0.5,), [()]).shape
    torch.Size([1, 32, 32, 3])

    Args:
        row: the corruption.
        images: (B, H, W, 3) uint8.
        constants: its strength, from `at_severity`.
        draws: for each image, what `row.draw` returned.
        frost_dir: as for `corrupt`.
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


def _check_shape(shape: tuple[int, ...], dtype: object, *, batched: bool) -> None:
    """Refuse an image that is not uint8 RGB with channels last, or that is too small."""
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


def _check_generators(rngs: Sequence[np.random.Generator], count: int) -> None:
    """Refuse seeds, a single generator, and too few or too many generators."""
    if isinstance(rngs, np.random.Generator) or not all(isinstance(rng, np.random.Generator) for rng in rngs):
        raise DataError(f"rngs={rngs!r}, but one np.random.Generator per image is needed; make them with sample_rng")
    if len(rngs) != count:
        raise DataError(f"{len(rngs)} generators for {count} images; pass one per image, see sample_rng")
