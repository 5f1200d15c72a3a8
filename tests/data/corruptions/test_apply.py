"""What holds for every corruption."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from spear_hf.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    corrupt,
    corrupt_batch,
    sample_rng,
)
from spear_hf.errors import DataError
from tests.data.corruptions.scenes import scene, scenes

ROWS = CORRUPTIONS | EXTRA_CORRUPTIONS


def rngs(name: str, count: int, preset: str = "cifar", severity: float = 5) -> list[np.random.Generator]:
    return [sample_rng(0, preset, name, severity, index) for index in range(count)]


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_of_nine_equals_nine_batches_of_one(name: str) -> None:
    images = scenes("cifar", 9)
    together = corrupt_batch(images, name, 5, rngs(name, 9)).numpy()
    alone = [corrupt(image, name, 5, rng) for image, rng in zip(images, rngs(name, 9), strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("severity", [2.5, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.3, 4.9))])
def test_any_size_works_with_a_named_preset(name: str, severity: float) -> None:
    for preset, height, width in (("cifar", 28, 28), ("tiny", 16, 40), ("imagenet", 45, 33)):
        image = scene(64, 0)[:height, :width]
        out = corrupt(image, name, severity, sample_rng(0, preset, name, severity, 0), preset)
        assert out.shape == image.shape
        assert out.dtype == np.uint8


@pytest.mark.parametrize("name", ROWS)
def test_the_image_that_came_in_is_left_alone(name: str) -> None:
    images = torch.from_numpy(scenes("cifar", 2))
    before = images.clone()
    assert not torch.equal(corrupt_batch(images, name, 5, rngs(name, 2)), images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_images_are_taken(name: str, value: int) -> None:
    image = np.full((32, 32, 3), value, dtype=np.uint8)
    assert corrupt(image, name, 5, rngs(name, 1)[0]).shape == image.shape


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads until the test is over."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ROWS)
def test_the_number_of_threads_changes_no_bit(name: str, threads: Callable[[int], None]) -> None:
    images = scenes("imagenet", 1)
    threads(1)
    alone = corrupt_batch(images, name, 5, rngs(name, 1))
    threads(3)
    assert torch.equal(corrupt_batch(images, name, 5, rngs(name, 1)), alone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ROWS)
def test_a_gpu_gives_the_same_pixels_within_one_level(name: str) -> None:
    images = scenes("imagenet", 4)
    cpu = corrupt_batch(images, name, 5, rngs(name, 4, "imagenet"))
    gpu = corrupt_batch(images, name, 5, rngs(name, 4, "imagenet"), device="cuda")
    difference = (cpu.int() - gpu.cpu().int()).abs()
    assert gpu.is_cuda
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.01


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"pixelate", "jpeg_compression"}))
def test_a_severity_near_zero_changes_almost_nothing(name: str) -> None:
    image = scene(32, 0)
    out = corrupt(image, name, 1e-3, rngs(name, 1)[0])
    assert np.abs(out.astype(int) - image).mean() < 1.01  # flooring alone moves a value by up to one level


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((32, 32), np.uint8), r"\(32, 32\).*convert grey.*convert\('RGB'\)"),
        (np.zeros((3, 32, 32), np.uint8), r"\(3, 32, 32\).*moving the channels last"),
        (np.zeros((32, 32, 4), np.uint8), r"RGBA"),
        (np.full((32, 32, 3), np.nan, np.float32), r"float32.*uint8 pixels.*NaN.*before normalising"),
        (np.zeros((8, 32, 3), np.uint8), r"16 pixels or more"),
        ([[0, 1], [2, 3]], r"image is a list; pass an \(H, W, 3\) uint8 array"),
    ],
)
def test_an_image_that_does_not_fit_is_told_what_to_become(image: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        corrupt(image, "fog", 5, rngs("fog", 1)[0], "cifar")


def test_each_image_needs_its_own_generator() -> None:
    with pytest.raises(DataError, match="1 generators for 3 images; pass one per image"):
        corrupt_batch(scenes("cifar", 3), "fog", 5, rngs("fog", 1))
    with pytest.raises(DataError, match=r"rngs=\[0\], but one np.random.Generator per image .* sample_rng"):
        corrupt_batch(scenes("cifar", 1), "fog", 5, [0])  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ROWS)
def test_read_only_and_strided_images_are_taken(name: str) -> None:
    images = scenes("cifar", 2)
    expected = corrupt_batch(images, name, 5, rngs(name, 2))
    images.flags.writeable = False
    channels_first = expected.new_tensor(images.transpose(0, 3, 1, 2))
    assert torch.equal(corrupt_batch(images, name, 5, rngs(name, 2)), expected)
    assert torch.equal(corrupt_batch(channels_first.permute(0, 2, 3, 1), name, 5, rngs(name, 2)), expected)


def test_an_empty_batch_stays_empty() -> None:
    assert corrupt_batch(scenes("cifar", 1)[:0], "fog", 5, []).shape == (0, 32, 32, 3)


def test_a_sample_has_its_own_randomness_and_keeps_it() -> None:
    def first(*key: object) -> int:
        return int(sample_rng(*key).integers(2**63))

    base = (0, "cifar", "fog", 5, 7)
    assert first(*base) == first(0, "cifar", "fog", 5.0, 7)
    others = [(1, *base[1:]), (0, "tiny", *base[2:]), (0, "cifar", "snow", 5, 7), (0, "cifar", "fog", 4, 7)]
    others += [(0, "cifar", "fog", 5, 8), (*base, "v2")]
    assert first(*base) not in {first(*other) for other in others}


def test_a_sample_id_that_is_no_row_number_is_refused() -> None:
    with pytest.raises(DataError, match="sample_id=-1 is outside"):
        sample_rng(0, "cifar", "fog", 5, -1)


def test_global_seeds_are_neither_read_nor_moved() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # pyright: ignore
    for name in ROWS:
        corrupt(scene(32, 0), name, 5, rngs(name, 1)[0])
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # pyright: ignore
    assert torch.equal(torch.get_rng_state(), torch_state)
