"""What a user of the corruptions is promised."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from spear_hf.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    PRESETS,
    corrupt,
    corrupt_batch,
    reencode_jpeg,
    resolve_corruptions,
    sample_rng,
)
from spear_hf.data.corruptions.constants import STRENGTHS, at_severity
from spear_hf.errors import DataError
from tests.data.corruptions_scenes import scene, scenes

ROWS = CORRUPTIONS | EXTRA_CORRUPTIONS


def rngs(name: str, count: int, preset: str = "cifar", severity: float = 5) -> list[np.random.Generator]:
    return [sample_rng(0, preset, name, severity, index) for index in range(count)]


def test_the_table_has_the_15_in_the_order_of_the_papers() -> None:
    first_words = [name.split("_")[0] for name in CORRUPTIONS]
    assert first_words[:7] == ["gaussian", "shot", "impulse", "defocus", "glass", "motion", "zoom"]
    assert first_words[7:] == ["snow", "frost", "fog", "brightness", "contrast", "elastic", "pixelate", "jpeg"]
    assert list(EXTRA_CORRUPTIONS) == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_of_33_equals_33_batches_of_one(name: str) -> None:
    images = scenes("cifar", 33)
    together = corrupt_batch(images, name, 5, rngs(name, 33)).numpy()
    alone = [corrupt(image, name, 5, rng) for image, rng in zip(images, rngs(name, 33), strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("severity", [0.3, 2.5, 4.9])
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


@pytest.mark.parametrize("name", ROWS)
def test_whole_severities_have_the_published_constants(name: str) -> None:
    for preset in PRESETS:
        assert [at_severity(name, severity, preset) for severity in range(1, 6)] == list(
            getattr(STRENGTHS[name], preset)
        )


def test_constants_are_linear_between_levels_and_reach_down_to_level_zero() -> None:
    assert at_severity("gaussian_noise", 0.5, "imagenet") == pytest.approx((0.04,))
    assert at_severity("glass_blur", 2.5, "imagenet") == pytest.approx((0.95, 2, 2))
    assert at_severity("elastic_transform", 0.5, "imagenet") == pytest.approx((244, (999 + 170.8) / 2, 12.2))
    assert at_severity("shot_noise", 0.5, "imagenet") == pytest.approx((1 / 120,))


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"pixelate", "jpeg_compression"}))
def test_a_severity_near_zero_changes_almost_nothing(name: str) -> None:
    image = scene(32, 0)
    out = corrupt(image, name, 1e-3, rngs(name, 1)[0])
    assert np.abs(out.astype(int) - image).mean() < 1.01  # flooring alone moves a value by up to one level


def test_water_and_mud_have_nothing_between_them() -> None:
    assert at_severity("spatter", 3.4, "cifar") == at_severity("spatter", 3, "cifar")
    assert at_severity("spatter", 3.6, "cifar") == at_severity("spatter", 4, "cifar")


@pytest.mark.parametrize("severity", [0, 6, -1, 5.01, float("nan")])
def test_severities_outside_0_to_5_are_refused(severity: float) -> None:
    with pytest.raises(DataError, match=r"outside \(0, 5\]; 1..5 are the published levels"):
        corrupt(scene(32, 0), "fog", severity, rngs("fog", 1)[0])


def test_a_size_without_constants_must_name_its_preset() -> None:
    with pytest.raises(
        DataError, match=r"28x28 pixels, but constants exist for 224x224 \(imagenet\).*preset='imagenet'"
    ):
        corrupt(scene(32, 0)[:28, :28], "fog", 5, rngs("fog", 1)[0])
    with pytest.raises(DataError, match="'imagenette' is not one of imagenet, cifar, tiny"):
        corrupt(scene(32, 0), "fog", 5, rngs("fog", 1)[0], "imagenette")


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


def test_an_unknown_name_gets_near_matches() -> None:
    with pytest.raises(DataError, match=r"'gausian_noise' is not one of the 19 known; did you mean gaussian_noise"):
        corrupt(scene(32, 0), "gausian_noise", 5, rngs("fog", 1)[0])


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


def test_groups_and_names_resolve_to_names() -> None:
    assert resolve_corruptions("all") == list(CORRUPTIONS)
    assert resolve_corruptions("extra") == list(EXTRA_CORRUPTIONS)
    assert resolve_corruptions("noise, fog") == ["gaussian_noise", "shot_noise", "impulse_noise", "fog"]
    assert resolve_corruptions(["fog", "frost", "fog"]) == ["fog", "frost", "fog"]
    groups = [name for group in ("noise", "blur", "weather", "digital") for name in resolve_corruptions(group)]
    assert groups == list(CORRUPTIONS)


@pytest.mark.parametrize(("names", "message"), [("", "names none"), ("fgo", "did you mean fog"), ([], "names none")])
def test_names_that_resolve_to_nothing_are_refused(names: str | list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve_corruptions(names)


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


def test_only_imagenet_images_were_stored_as_jpeg() -> None:
    assert {name: preset.jpeg_quality for name, preset in PRESETS.items()} == {
        "imagenet": 85,
        "cifar": None,
        "tiny": None,
    }


def test_jpeg_of_quality_85_softens_noise() -> None:
    images = torch.from_numpy(scenes("imagenet", 1))
    noisy = corrupt_batch(images, "gaussian_noise", 3, rngs("gaussian_noise", 1))
    stored = reencode_jpeg(noisy)
    assert (stored.float() - images.float()).std() < 0.85 * (noisy.float() - images.float()).std()
