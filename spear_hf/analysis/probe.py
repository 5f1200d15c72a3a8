"""A linear probe: how much of the classes is still in frozen features, and how much of it the classifier misses."""

from typing import NamedTuple

import torch
from torch import Tensor

from spear_hf.errors import ConfigError, DataError


class ProbeResult(NamedTuple):
    """Accuracies in percent, of the frozen classifier and of a probe on the features it reads."""

    accuracy: float
    probe_accuracy: float

    @property
    def gap(self) -> float:
        """probe - frozen, in points: what retraining the last layer would win; below 0 the probe learned less."""
        return self.probe_accuracy - self.accuracy


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """100 / N sum_n [answers_n = labels_n], in percent; answers (N,) and labels (N,) are classes."""
    return 100 * float((answers == labels).double().mean())


def probe_accuracy(features: Tensor, labels: Tensor, *, c: float = 1.0, folds: int = 5, seed: int = 0) -> float:
    """Accuracy in percent of softmax(W x + w), fitted and asked by cross-validation: no image answers its own label.

    Needs scikit-learn (`pip install "spear-hf[analysis]"`).

    Args:
        features: (N, C), frozen; each channel is standardised on the images that the probe is fitted on.
        labels: (N,) integers.
        c: inverse strength of the L2 penalty on W.
        folds: parts of the images; each is answered by a probe that was fitted on the others.
        seed: of the parts.

    Raises:
        DataError: features and labels of other lengths, a single class, or a class with fewer images than folds.
    """
    _check(features, labels, folds)
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise ConfigError(
            'a linear probe needs scikit-learn, which is not installed; pip install "spear-hf[analysis]"'
        ) from error
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000))
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    found = cross_val_predict(probe, features.double().numpy(), labels.numpy(), cv=parts)
    return accuracy(torch.from_numpy(found), labels)


def probe_features(features: Tensor, logits: Tensor, labels: Tensor, *, c: float = 1.0, seed: int = 0) -> ProbeResult:
    """The frozen classifier's accuracy and the probe's, on the same images.

    Args:
        features: (N, C), what enters the classifier.
        logits: (N, K), what it made of them.
        labels: (N,).
        c, seed: as for `probe_accuracy`.
    """
    return ProbeResult(accuracy(logits.argmax(1), labels), probe_accuracy(features, labels, c=c, seed=seed))


def _check(features: Tensor, labels: Tensor, folds: int) -> None:
    if features.dim() != 2 or labels.shape != features.shape[:1]:
        raise DataError(
            f"features {tuple(features.shape)} and labels {tuple(labels.shape)} do not fit; a probe takes (N, C) and "
            "(N,): pool the features, and give one label for each image"
        )
    counts = labels.unique(return_counts=True)[1]
    if len(counts) < 2 or int(counts.min()) < folds:
        raise DataError(
            f"{len(labels)} images of {len(counts)} classes, the rarest with {int(counts.min())}; a probe with "
            f"{folds} folds needs 2 classes of at least {folds} images each: take more images or fewer folds"
        )
