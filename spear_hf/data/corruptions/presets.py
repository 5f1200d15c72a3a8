"""The three published image sizes, each with its own constants: ImageNet-C, CIFAR-10/100-C and Tiny-ImageNet-C."""

from typing import NamedTuple

from spear_hf.errors import DataError

SMALLEST_SIDE = 16  # pixels; below this a blur is wider than the image


class Preset(NamedTuple):
    """One published benchmark: the size its constants were made for, in pixels, and how its images were stored."""

    name: str
    size: int
    jpeg_quality: int | None  # the published images went through this JPEG; None: stored without loss
    benchmark: str


PRESETS: dict[str, Preset] = {
    "imagenet": Preset("imagenet", 224, 85, "ImageNet-C"),
    "cifar": Preset("cifar", 32, None, "CIFAR-10-C and CIFAR-100-C"),
    "tiny": Preset("tiny", 64, None, "Tiny-ImageNet-C"),
}


def resolve_preset(preset: str, height: int, width: int) -> Preset:
    """The preset by name, or by image size where `preset` is "auto".

    The constants are in pixels: ImageNet's on a 32 pixel image are up to 21 dB too strong, so no size is guessed.

    Raises:
        DataError: an unknown name, or "auto" with a size that no benchmark has.
    """
    if preset in PRESETS:
        return PRESETS[preset]
    if preset != "auto":
        raise DataError(f"preset={preset!r} is not one of {', '.join(PRESETS)} or 'auto'; name one of these")
    for candidate in PRESETS.values():
        if (height, width) == (candidate.size, candidate.size):
            return candidate
    sizes = ", ".join(f"{p.size}x{p.size} ({p.name})" for p in PRESETS.values())
    raise DataError(
        f"preset='auto' and an image of {height}x{width} pixels, but constants exist for {sizes}; "
        f"resize the image first, or choose the constants yourself with preset='imagenet', 'cifar' or 'tiny'"
    )
