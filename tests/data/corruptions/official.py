"""The randomness of the official generators: numpy's legacy stream, drawn in their order, as our kernels take it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from spear_hf.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from spear_hf.data.corruptions.apply import apply_draws
from spear_hf.data.corruptions.constants import Constants, at_severity
from spear_hf.data.corruptions.frost import frost_textures
from spear_hf.data.corruptions.glass import rounds_and_reach
from spear_hf.data.corruptions.weather import plasma_size

ROWS = CORRUPTIONS | EXTRA_CORRUPTIONS
# What reference.npz holds: the key of its clean images, the severities, and the indices that the seeds are made of.
REFERENCE = {"imagenet": ("clean224", (1, 3, 5), (3, 17)), "cifar": ("clean32", (1, 2, 3, 4, 5), tuple(range(16)))}
Draws = tuple[np.ndarray, ...]
Draw = Callable[[np.random.RandomState, np.ndarray, Constants, Path | None], Draws]


def official_draws(
    name: str, image: np.ndarray, constants: Constants, severity: int, index: int, frost_dir: Path | None = None
) -> Draws:
    """What the official code draws for one (H, W, 3) image of the reference, whose seeds this is."""
    stream = np.random.RandomState(100_000 * list(ROWS).index(name) + 1000 * severity + index)
    return OFFICIAL[name](stream, image, constants, frost_dir) if name in OFFICIAL else ()


def official_differences(
    name: str, preset: str, reference: Mapping[str, np.ndarray], frost_dir: Path
) -> list[np.ndarray]:
    """|ours - theirs| for each severity of the reference, (B, H, W, 3) in levels; ours with the official draws."""
    key, severities, indices = REFERENCE[preset]
    clean, differences = reference[key], []
    for severity, official in zip(severities, reference[f"{preset}/{name}"], strict=True):
        constants = at_severity(name, severity, preset)
        draws = [
            official_draws(name, image, constants, severity, index, frost_dir)
            for image, index in zip(clean, indices, strict=True)
        ]
        ours = apply_draws(ROWS[name], torch.from_numpy(clean), constants, draws, frost_dir=frost_dir)
        differences.append(np.abs(ours.numpy().astype(int) - official))
    return differences


def normal(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    return (stream.normal(size=image.shape).astype(np.float32),)


def shot(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    """Photon counts; the lowest bits of a column are always below its bound, so the column is the level."""
    photons = round(1 / constants[0])
    counts = stream.poisson(image / 255.0 * photons)
    return (((np.minimum(counts / photons, 1) * 255).astype(np.int64) - 2**31).astype(np.int32),)


def impulse(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    changed = stream.random_sample(image.shape) < constants[0]
    white = stream.random_sample(image.shape) < 0.5
    black = int(constants[0] * 0.75 * 2**32) - 2**31
    return (np.where(changed, np.where(white, -(2**31), black), 2**31 - 1).astype(np.int32),)


def glass(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    rounds, reach = rounds_and_reach(constants)
    rows, columns = (side - 2 * reach for side in image.shape[:2])
    return (stream.randint(-reach, reach, size=(rounds, rows, columns, 2)).astype(np.int8),)


def motion(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    return (np.array(stream.uniform(-45, 45)),)


def snow(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    return stream.normal(size=image.shape[:2]), np.array(stream.uniform(-135, -45))


def frost(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    """The texture and where its crop starts, as the middle of the share that falls on that pixel."""
    height, width, _ = image.shape
    textures = frost_textures(constants[2], height, width, frost_dir)
    index = stream.randint(len(textures))
    spare = np.array(textures[index].shape[:2]) - (height, width)
    return np.array(index), (np.array([stream.randint(0, pixels) for pixels in spare]) + 0.5) / spare


def fog(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    steps = 2 * stream.random_sample(plasma_size(*image.shape[:2]) ** 2 - 1) - 1
    return (steps.astype(np.float32),)


def elastic(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    corners = stream.uniform(-1, 1, size=(3, 2))
    field = stream.uniform(-1, 1, size=(2, *image.shape[:2]))
    return corners.astype(np.float32), field.astype(np.float32)


def liquid(stream: np.random.RandomState, image: np.ndarray, constants: Constants, frost_dir: Path | None) -> Draws:
    return (stream.normal(size=image.shape[:2]),)


OFFICIAL: dict[str, Draw] = {
    "gaussian_noise": normal,
    "shot_noise": shot,
    "impulse_noise": impulse,
    "glass_blur": glass,
    "motion_blur": motion,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "elastic_transform": elastic,
    "speckle_noise": normal,
    "spatter": liquid,
}
