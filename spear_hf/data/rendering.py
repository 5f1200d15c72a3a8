"""From encoded images to corrupted ones: decode, crop, corrupt, JPEG; a pure function of sample id and domain."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spear_hf.data.corruptions import (
    PRESETS,
    corrupt_batch,
    frost_provenance,
    reencode_jpeg,
    resolve_preset,
    sample_rng,
)
from spear_hf.data.corruptions.constants import SMALLEST_SIDE
from spear_hf.data.decode import CROP, SHORT_SIDE, crop_imagenet, decode_rgb
from spear_hf.data.domains import CLEAN, Domain
from spear_hf.data.sources import ImageSource
from spear_hf.errors import DataError


@dataclass(frozen=True)
class Recipe:
    """How images are cropped and corrupted.

    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.rendering import Recipe
    >>> Recipe("imagenet", jpeg_quality=85, crop=True).describe([CLEAN])["crop"]
    'short side 256, centre 224'

    Args:
        preset: "imagenet", "cifar" or "tiny" choose the constants; None if nothing is corrupted here.
        seed: of the corruptions.
        jpeg_quality: of the JPEG that is applied after a corruption; None for no JPEG.
        crop: crop images as those of ImageNet-C were, the clean ones too.
        frost_dir: folder of the published frost textures.
        chosen_by: (height, width) of the image whose size chose the preset; None if the preset was named.
    """

    preset: str | None
    seed: int = 0
    jpeg_quality: int | None = None
    crop: bool = False
    frost_dir: str | None = None
    chosen_by: tuple[int, int] | None = None

    @property
    def note(self) -> str | None:
        """A line for people: whose constants the corruptions have; None if nothing is corrupted here."""
        if self.preset is None:
            return None
        size = PRESETS[self.preset].size
        why = f", the nearest to {self.chosen_by[0]} x {self.chosen_by[1]}" if self.chosen_by else ""
        return f"corruptions: constants of preset {self.preset}, made for {size} x {size} pixels{why}"

    def describe(self, domains: Sequence[Domain]) -> dict[str, Any]:
        """Provenance, JSON-ready: two results are comparable only if it is equal."""
        has_frost = self.preset is not None and any(name == "frost" for domain in domains for name, _ in domain.steps)
        facts = asdict(self) | {
            "crop": f"short side {SHORT_SIDE}, centre {CROP}" if self.crop else None,
            "frost": frost_provenance(self.frost_dir) if has_frost else None,
        }
        del facts["frost_dir"], facts["chosen_by"]
        return facts


def make_recipe(
    source: ImageSource,
    domains: Sequence[Domain],
    preset: str,
    seed: int,
    jpeg_quality: int | str | None,
    frost_dir: str | Path | None,
) -> Recipe:
    """The Recipe for a source; "auto" takes the constants of the nearest size to that of the first image.

    Large photographs get the constants of ImageNet, its crop, and its JPEG of quality 85.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.domains import parse_domain
    >>> from spear_hf.data.rendering import make_recipe
    >>> from spear_hf.data.sources import Columns, open_source
    >>> rows = open_source(Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)]}), Columns())
    >>> make_recipe(rows, [parse_domain("fog", 5)], "auto", 0, "auto", None).preset
    'cifar'

    Raises:
        DataError: an option for images that are corrupted already, or a bad JPEG quality.
    """
    if source.held is not None and (preset != "auto" or jpeg_quality not in ("auto", None)):
        raise DataError(
            f"preset={preset!r}, jpeg_quality={jpeg_quality!r}, but the images of {source.name} are corrupted already; "
            "leave both at 'auto'"
        )
    if source.held is not None or all(domain.is_clean for domain in domains):
        return Recipe(None, seed)
    size = _first_size(source) if preset == "auto" else (CROP, CROP)
    name = resolve_preset(preset, *size).name
    quality = PRESETS[name].jpeg_quality if jpeg_quality == "auto" else jpeg_quality
    if isinstance(quality, str) or (quality is not None and not 1 <= quality <= 95):
        raise DataError(f"jpeg_quality={quality!r} is not in 1..95; pass a number, None for no JPEG, or 'auto'")
    crop = name == "imagenet" and min(size) >= CROP  # smaller images would be enlarged
    return Recipe(
        name, seed, quality, crop, str(Path(frost_dir)) if frost_dir else None, size if preset == "auto" else None
    )


def _first_size(source: ImageSource) -> tuple[int, int]:
    """(height, width) of the first image that can be decoded."""
    for sample_id in range(len(source)):
        try:
            encoded = source.read(np.array([sample_id]), CLEAN)[0]
            height, width, _ = decode_rgb(encoded, partial(source.locate, sample_id, CLEAN)).shape
            return height, width
        except DataError:
            continue
    raise DataError(f"no image of {source.name} can be decoded; pass images, or preset=")


def render(
    source: ImageSource, recipe: Recipe, ids: np.ndarray, domains: Sequence[Domain], *, skip_broken: bool = False
) -> tuple[list[np.ndarray | None], list[int]]:
    """One uint8 (H, W, 3) image for each sample id under its domain, and the ids of broken images.

    An image that cannot be decoded is broken, and under a corruption one that is too small for it.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.rendering import Recipe, render
    >>> from spear_hf.data.sources import Columns, open_source
    >>> rows = open_source(Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)]}), Columns())
    >>> images, broken = render(rows, Recipe(None), np.array([0]), [CLEAN])

    Args:
        source: where the images are.
        recipe: how they are cropped and corrupted.
        ids: (n,) sample ids.
        domains: n domains.
        skip_broken: return None for a broken image instead of raising.

    Raises:
        DataError: broken images; it counts them and names the first.
    """
    images: list[np.ndarray | None] = [None] * len(ids)
    broken: list[int] = []
    errors: list[DataError] = []
    for domain in dict.fromkeys(domains):
        places = [i for i, other in enumerate(domains) if other == domain]
        for i, encoded in zip(places, source.read(ids[places], domain), strict=True):
            try:
                locate = partial(source.locate, int(ids[i]), domain)
                image = decode_rgb(encoded, locate)
                image = crop_imagenet(image) if recipe.crop else image
                if recipe.preset is not None and not domain.is_clean:
                    _refuse_tiny(image, locate)
                images[i] = image
            except DataError as error:
                broken.append(int(ids[i]))
                errors.append(error)
        if recipe.preset is not None and not domain.is_clean:
            _corrupt(recipe, recipe.preset, images, places, ids, domain)
    if errors and not skip_broken:
        raise errors[0] if len(errors) == 1 else DataError(_listed(errors, len(ids))) from errors[0]
    return images, broken


def _refuse_tiny(image: np.ndarray, locate: Callable[[], str]) -> None:
    """Refuse an image that is too small for the corruptions, with its name."""
    height, width = image.shape[:2]
    if min(height, width) < SMALLEST_SIDE:
        raise DataError(
            f"{locate()} is {height} x {width} pixels, too small to be corrupted (at least {SMALLEST_SIDE} x "
            f"{SMALLEST_SIDE}); enlarge it, or pass skip_broken=True"
        )


def _listed(errors: Sequence[DataError], count: int) -> str:
    shown = "; ".join(
        re.sub("; (repair|enlarge) it, or pass skip_broken=True$", "", str(error)) for error in errors[:5]
    )
    more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
    return f"{len(errors)} of {count} images of a batch: {shown}{more}; repair them, or pass skip_broken=True"


def _corrupt(
    recipe: Recipe,
    preset: str,
    images: list[np.ndarray | None],
    places: Sequence[int],
    ids: np.ndarray,
    domain: Domain,
) -> None:
    """Corrupt the images at `places` in the list; those of one size together."""
    by_size: dict[tuple[int, ...], list[int]] = {}
    for i in places:
        if (image := images[i]) is not None:
            by_size.setdefault(image.shape, []).append(i)
    for same in by_size.values():
        corrupted = _corrupt_one_size(recipe, preset, [images[i] for i in same], ids[same], domain)
        for i, image in zip(same, corrupted, strict=True):
            images[i] = image


def _corrupt_one_size(recipe: Recipe, preset: str, images: list[Any], ids: np.ndarray, domain: Domain) -> np.ndarray:
    """(n, H, W, 3) uint8: n images of one size, corrupted and stored as JPEG."""
    batch = torch.from_numpy(np.stack(images))
    for name, severity in domain.steps:
        rngs = [sample_rng(recipe.seed, preset, name, severity, int(sample_id)) for sample_id in ids]
        batch = corrupt_batch(batch, name, severity, rngs, preset, frost_dir=recipe.frost_dir)
    if recipe.jpeg_quality is not None:
        batch = reencode_jpeg(batch, recipe.jpeg_quality)
    return batch.numpy()
