"""Frost: the published textures by hash, and the synthetic ones."""

from pathlib import Path

import numpy as np
import pytest

from spear_hf.data.corruptions import corrupt, frost_provenance, sample_rng
from spear_hf.data.corruptions.frost import (
    FREQUENCIES,
    KINDS,
    OFFICIAL,
    Ice,
    _make_texture,
    frost_textures,
    resize_texture,
)
from spear_hf.errors import DataError
from tests.data.corruptions.scenes import scene


@pytest.fixture(autouse=True)
def _no_frost_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEAR_FROST_DIR", raising=False)


@pytest.fixture(scope="module")
def textures() -> list[np.ndarray]:
    return [texture.numpy() for texture in frost_textures(1, 32, 32)]  # drawn once in a process


def power(brightness: np.ndarray) -> np.ndarray:
    """log10 of the mean power in the bands around FREQUENCIES, of an image mirrored so that it has no seam."""
    height, width = brightness.shape
    tiled = np.pad(brightness, ((0, height), (0, width)), mode="symmetric")
    spectrum = np.abs(np.fft.fft2(tiled - tiled.mean())) ** 2 / tiled.size
    radius = np.hypot(np.fft.fftfreq(2 * height)[:, None], np.fft.fftfreq(2 * width))
    bands = np.digitize(radius, np.sqrt(FREQUENCIES[1:] * FREQUENCIES[:-1]))
    bands[0, 0] = len(FREQUENCIES)  # the constant belongs to no band
    return np.log10([spectrum[bands == band].mean() for band in range(len(FREQUENCIES))])


@pytest.mark.parametrize(("index", "ice"), list(enumerate(KINDS)))
def test_made_textures_have_the_statistics_of_the_photographs(index: int, ice: Ice, textures: list[np.ndarray]) -> None:
    texture = textures[index].astype(float)
    np.testing.assert_allclose(texture.mean((0, 1)), ice.mean, atol=1.5)
    np.testing.assert_allclose(texture.std((0, 1)), ice.deviation, rtol=0.06)
    np.testing.assert_allclose(power(texture.mean(2))[2:], ice.power[2:], atol=0.35)


def test_made_textures_are_the_same_at_every_call(textures: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(_make_texture(KINDS[0], 0), textures[0])


def test_provenance_tells_made_textures_from_official_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frost_provenance() == "frost(synthetic)"
    assert frost_provenance(tmp_path) == "frost(official)"
    monkeypatch.setenv("SPEAR_FROST_DIR", str(tmp_path))
    assert frost_provenance() == "frost(official)"


def test_a_folder_without_the_official_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no frost1.png; it needs .* unset frost_dir and SPEAR_FROST_DIR"):
        corrupt(scene(32, 0), "frost", 5, sample_rng(0, "cifar", "frost", 5, 0), frost_dir=tmp_path)


def test_another_file_of_an_official_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "frost1.png").write_bytes(b"not the photograph")
    with pytest.raises(DataError, match=r"frost1.png .* has sha256 .* but the official file has ff9f9078"):
        frost_textures(1, 32, 32, tmp_path)


def test_official_textures_are_decoded_once(shared: Path) -> None:
    first = frost_textures(1, 224, 224, shared / "frost")
    assert [tuple(texture.shape) for texture in first] == [
        (600, 900, 3),
        (315, 560, 3),
        (315, 560, 3),
        (350, 527, 3),
        (495, 660, 3),
    ]
    assert len(first) == len(OFFICIAL)
    assert first is frost_textures(1, 224, 224, shared / "frost")


def test_textures_grow_to_cover_a_large_image() -> None:
    assert all(min(texture.shape[0] - 500, texture.shape[1] - 1100) > 0 for texture in frost_textures(1, 500, 1100))


def test_a_texture_at_a_fifth_is_every_fifth_pixel() -> None:
    texture = np.random.default_rng(0).integers(0, 256, size=(50, 75, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_texture(texture, 0.2), texture[2::5, 2::5])
