"""Speed and fidelity of every corruption, on one core.

    python -m benchmarks.corruptions [--seconds 1] [--names all] [--whole] [--output benchmarks/results/corruptions.md]

Speed is images per second of CPU time at severity 5, random draws included. The best of several batches counts, because
another program on the machine can make a batch only slower. There are two baselines: the official algorithm in plain
numpy and scipy, if that is short, measured in the same run; and the official code, measured once on another machine.
Fidelity is the largest difference to the official pixels and the share of values that differ, over the reference images
with the official random draws; it needs the shared data (SPEAR_SHARED_DATA).
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Column, Table
from scipy import ndimage

from spear_hf.data.corruptions import CORRUPTIONS, corrupt_batch, resolve_corruptions, sample_rng
from spear_hf.data.corruptions.constants import at_severity
from tests.data.corruptions.official import official_differences
from tests.data.corruptions.scenes import scenes

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SPEAR_SHARED_DATA", ROOT.parent / "shared" / "data"))
HEADINGS = (
    *("severity 5", "224: images/s", "x plain", "plain", "x official", "official, recorded"),
    *("32: images/s", "x official", "official, recorded", "224: most, differ", "32: most, differ"),
)
BATCH = {"imagenet": 2, "cifar": 256}
# Images per second of the official code (import patches only) on one core of another machine: 224 x 224, 32 x 32.
RECORDED = {
    "gaussian_noise": (194, 11065),
    "shot_noise": (106, 4344),
    "impulse_noise": (98, 6161),
    "defocus_blur": (202, 5108),
    "glass_blur": (1.7, 85),
    "motion_blur": (12.0, 534),
    "zoom_blur": (17.2, 229),
    "snow": (25, 428),
    "frost": (204, 209),
    "fog": (262, 2548),
    "brightness": (51, 2295),
    "contrast": (547, 14957),
    "elastic_transform": (79, 1916),
    "pixelate": (2305, 29460),
    "jpeg_compression": (2504, 6706),
    "speckle_noise": (296, 11266),
    "gaussian_blur": (203, 9320),
    "spatter": (297, 4370),
    "saturate": (45, 2251),
}


def naive_gaussian_noise(image: np.ndarray, sigma: float) -> np.ndarray:
    return np.uint8(np.clip(image / 255 + np.random.normal(size=image.shape, scale=sigma), 0, 1) * 255)


def naive_shot_noise(image: np.ndarray, variance: float) -> np.ndarray:
    return np.uint8(np.clip(np.random.poisson(image / 255 / variance) * variance, 0, 1) * 255)


def naive_glass_blur(image: np.ndarray, sigma: float, reach: int, rounds: int) -> np.ndarray:
    image = np.uint8(ndimage.gaussian_filter(image / 255, (sigma, sigma, 0), mode="nearest") * 255)
    height, width, _ = image.shape
    for _ in range(rounds):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                dx, dy = np.random.randint(-reach, reach, size=2)
                image[h, w] = image[h + dy, w + dx]
    return np.uint8(ndimage.gaussian_filter(image / 255, (sigma, sigma, 0), mode="nearest") * 255)


def naive_zoom_blur(image: np.ndarray, stop: float, step: float) -> np.ndarray:
    total, size = image / np.float32(255), len(image)
    factors = np.arange(1, stop, step)
    for factor in factors:
        kept = math.ceil(size / factor)
        top = (size - kept) // 2
        crop = image[top : top + kept, top : top + kept] / np.float32(255)
        zoomed = ndimage.zoom(crop, (factor, factor, 1), order=1)
        trim = (len(zoomed) - size) // 2
        total = total + zoomed[trim : trim + size, trim : trim + size]
    return np.uint8(np.clip(total / (len(factors) + 1), 0, 1) * 255)


def naive_contrast(image: np.ndarray, factor: float) -> np.ndarray:
    levels = image / 255
    mean = levels.mean((0, 1), keepdims=True)
    return np.uint8(np.clip((levels - mean) * factor + mean, 0, 1) * 255)


def naive_pixelate(image: np.ndarray, share: float) -> np.ndarray:
    size, small = len(image), int(len(image) * share)
    shrunk = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
    return np.array(shrunk.resize((size, size), Image.Resampling.BOX))


def naive_jpeg_compression(image: np.ndarray, quality: int) -> np.ndarray:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))


NAIVE: dict[str, Callable[..., np.ndarray]] = {
    "gaussian_noise": naive_gaussian_noise,
    "shot_noise": naive_shot_noise,
    "glass_blur": naive_glass_blur,
    "zoom_blur": naive_zoom_blur,
    "contrast": naive_contrast,
    "pixelate": naive_pixelate,
    "jpeg_compression": naive_jpeg_compression,
}


def best_rate(work: Callable[[], object], images: int, seconds: float) -> float:
    """Images per second of CPU time: the best batch within about `seconds`, after a warm-up batch if there is time."""
    if seconds > 0:
        work()
    best, start = math.inf, time.process_time()
    while best == math.inf or time.process_time() - start < seconds:
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return images / best


def our_rate(name: str, preset: str, seconds: float) -> float:
    """Images per second of `corrupt_batch` at severity 5."""
    images = torch.from_numpy(scenes(preset, BATCH[preset]))

    def work() -> None:
        rngs = [sample_rng(0, preset, name, 5, index) for index in range(len(images))]
        corrupt_batch(images, name, 5, rngs, preset)

    return best_rate(work, len(images), seconds)


def naive_rate(name: str, seconds: float) -> float | None:
    """Images per second of the plain algorithm at 224 x 224, if there is one; glass blur runs once."""
    if name not in NAIVE:
        return None
    image, constants = scenes("imagenet", 1)[0], at_severity(name, 5, "imagenet")
    return best_rate(lambda: NAIVE[name](image, *constants), 1, 0 if name == "glass_blur" else seconds)


def fidelity(name: str, preset: str) -> str:
    """The largest difference to the official pixels, and the share of values that differ, over all severities."""
    path = SHARED / "corruption_reference" / "reference.npz"
    if not path.is_file():
        return "-"
    with np.load(path) as reference:
        differences = official_differences(name, preset, reference, SHARED / "frost")
    largest = max(int(difference.max()) for difference in differences)
    return f"{largest}, {100 * np.mean([(difference > 0).mean() for difference in differences]):.3f} %"


def whole_cifar(images: int = 10_000, batch: int = 500) -> tuple[float, float]:
    """(CPU seconds, seconds on the clock) for CIFAR-10-C at severity 5: 15 times 10,000 images of 32 x 32."""
    clean = torch.from_numpy(scenes("cifar", batch))
    cpu, clock = time.process_time(), time.perf_counter()
    for name in CORRUPTIONS:
        for start in range(0, images, batch):
            corrupt_batch(clean, name, 5, [sample_rng(0, "cifar", name, 5, start + index) for index in range(batch)])
    return time.process_time() - cpu, time.perf_counter() - clock


def ratio(rate: float, baseline: float | None) -> float | None:
    """The ratio to a baseline, if there is one."""
    return None if baseline is None else rate / baseline


def shown(number: float | None) -> str:
    """A rate or a ratio as a short text."""
    return "-" if number is None else f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def make_table(names: Sequence[str], seconds: float) -> Table:
    """One row per corruption and one for the harmonic mean over the 15."""
    table = Table(*(Column(heading, justify="right") for heading in HEADINGS), box=MARKDOWN)
    large, small = ({name: our_rate(name, preset, seconds) for name in names} for preset in BATCH)
    for name in names:
        plain, (old_large, old_small) = naive_rate(name, seconds), RECORDED[name]
        speed = [large[name], ratio(large[name], plain), plain, ratio(large[name], old_large), old_large]
        speed += [small[name], ratio(small[name], old_small), old_small]
        table.add_row(name, *map(shown, speed), fidelity(name, "imagenet"), fidelity(name, "cifar"))
    if large.keys() >= CORRUPTIONS.keys():
        old = [statistics.harmonic_mean([RECORDED[name][column] for name in CORRUPTIONS]) for column in (0, 1)]
        ours = [statistics.harmonic_mean([rates[name] for name in CORRUPTIONS]) for rates in (large, small)]
        speed = [ours[0], None, None, ours[0] / old[0], old[0], ours[1], ours[1] / old[1], old[1]]
        table.add_row("harmonic mean of the 15", *map(shown, speed), "-", "-")
    return table


def main() -> None:
    """Measure, print the tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds per measurement")
    parser.add_argument("--names", default="all,extra", help="corruptions or groups")
    parser.add_argument("--whole", action="store_true", help="corrupt 150,000 images, as in CIFAR-10-C")
    parser.add_argument("--output", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(record=True, width=240)
    console.print(make_table(resolve_corruptions(options.names), options.seconds))
    if options.whole:
        cpu, clock = whole_cifar()
        console.print(
            f"\nCIFAR-10-C at severity 5, 15 x 10,000 images: {cpu:.1f} s of CPU time ({clock:.1f} s on the clock)"
        )
    if options.output:
        options.output.write_text(console.export_text())


if __name__ == "__main__":
    main()
