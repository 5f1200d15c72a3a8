import sys

import pytest
import torch
from torch import nn

from spear_hf.analysis import accuracy, probe_accuracy, probe_features
from spear_hf.errors import ConfigError, DataError


def test_a_probe_finds_what_is_linear_and_nothing_where_nothing_is() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    noise = torch.randn(200, 8, generator=random)
    assert probe_accuracy(nn.functional.one_hot(labels).float() * 10 + noise[:, :4], labels) == 100
    assert probe_accuracy(noise, labels) < 40


def test_the_probe_gap_is_zero_on_equal_features() -> None:
    labels = torch.arange(60) % 3
    logits = nn.functional.one_hot(labels).float()
    found = probe_features(logits, logits, labels)
    assert (found.accuracy, found.probe_accuracy, found.gap) == (100, 100, 0)


def test_the_probe_gap_is_what_the_classifier_misses() -> None:
    labels = torch.arange(60) % 3
    features = nn.functional.one_hot(labels).float()
    assert probe_features(features, features.roll(1, dims=1), labels).gap == 100


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
