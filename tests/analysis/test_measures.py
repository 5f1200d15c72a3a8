import math
import sys

import pytest
import torch
from torch import nn

from spear_hf.analysis import accuracy, amd, linear_cka, probe_accuracy
from spear_hf.errors import ConfigError, DataError


def test_amd_is_the_mean_distance_of_channel_means() -> None:
    a = torch.tensor([[0.0, 1.0], [2.0, 3.0]])  # means 1, 2
    b = torch.tensor([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0]])  # means 4, 1
    assert amd(a, b) == (3 + 1) / 2


def test_cka_of_a_tiny_case_by_hand() -> None:
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])  # centered already; A^T A = [[2, 1], [1, 2]]
    b = torch.tensor([[1.0], [0.0], [-1.0]])  # B^T B = 2, B^T A = [2, 1]
    assert linear_cka(a, b) == pytest.approx(5 / (2 * math.sqrt(10)))


def test_cka_does_not_change_under_rotation_scaling_and_shift() -> None:
    a, b = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0))
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))[0]
    assert linear_cka(3.5 * a @ rotation + 7, b) == pytest.approx(linear_cka(a, b), abs=1e-6)
    assert linear_cka(a, a @ rotation) == pytest.approx(1.0, abs=1e-6)
    assert linear_cka(a, b) == pytest.approx(linear_cka(b, a))


def test_cka_changes_when_one_channel_is_scaled() -> None:
    a = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert linear_cka(a, a * torch.tensor([10.0, 1, 1, 1, 1, 1])) < 0.9


def test_cka_of_a_constant_representation_is_nan() -> None:
    assert math.isnan(linear_cka(torch.ones(5, 3), torch.randn(5, 3)))


def test_shapes_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(DataError, match=r"amd got shapes \(4, 3\) and \(4, 2\), it compares \(N, C\) with \(M, C\)"):
        amd(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(DataError, match=r"linear_cka got shapes \(4, 3\) and \(5, 3\).*the same images"):
        linear_cka(torch.zeros(4, 3), torch.zeros(5, 3))


def test_a_probe_finds_what_is_linear_and_nothing_where_nothing_is() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    noise = torch.randn(200, 8, generator=random)
    assert probe_accuracy(nn.functional.one_hot(labels).float() * 10 + noise[:, :4], labels) == 100
    assert probe_accuracy(noise, labels) < 40


def test_a_probe_says_what_it_needs() -> None:
    with pytest.raises(DataError, match=r"features \(6, 2\) and labels \(5,\) do not fit"):
        probe_accuracy(torch.zeros(6, 2), torch.zeros(5, dtype=torch.long))
    with pytest.raises(DataError, match="the rarest with 1; a probe with 5 folds needs 2 classes of at least 5 images"):
        probe_accuracy(torch.zeros(6, 2), torch.tensor([0, 0, 0, 0, 0, 1]))


def test_a_probe_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ConfigError, match=r'needs scikit-learn.*pip install "spear-hf\[analysis\]"'):
        probe_accuracy(torch.randn(20, 2), torch.arange(20) % 2)


def test_accuracy_is_in_percent() -> None:
    assert accuracy(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3])) == 75
