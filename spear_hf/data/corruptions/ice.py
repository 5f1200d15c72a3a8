"""Made textures of frost: random fields with the statistics of the official photographs, and none of their pixels."""

import numpy as np

SIZES = ((600, 900), (315, 560), (315, 560), (350, 527), (495, 660))
MEANS = (
    (77.7, 149.1, 165.7),
    (200.8, 205.4, 214.5),
    (200.8, 205.4, 214.5),
    (137.6, 152.8, 165.2),
    (112.4, 123.4, 134.8),
)
DEVIATIONS = ((26.9, 16.5, 15.3), (21.4, 22.1, 22.6), (21.4, 22.1, 22.6), (28.5, 28.5, 29.9), (44.4, 43.3, 41.7))


def synthetic_textures() -> list[np.ndarray]:
    """Five (h, w, 3) uint8 textures, the same at every call."""
    return [make_texture(index) for index in range(len(SIZES))]


def make_texture(index: int) -> np.ndarray:
    """One texture: a random field of falling spectrum, brought to the mean and deviation of each channel."""
    height, width = SIZES[index]
    rng = np.random.Generator(np.random.Philox(key=index))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((height, width))) / frequency**1.2, s=(height, width))
    field = (field - field.mean()) / field.std()
    return np.clip(field[..., None] * DEVIATIONS[index] + np.array(MEANS[index]) + 0.5, 0, 255).astype(np.uint8)
