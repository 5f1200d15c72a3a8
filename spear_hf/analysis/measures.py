"""Measures of representations: AMD and CKA between two of them, and a linear probe on one."""

import torch
from torch import Tensor

from spear_hf.errors import ConfigError, DataError


def amd(a: Tensor, b: Tensor) -> float:
    """Activation Mean Deviation, 1/C sum_c |mean_n a[n, c] - mean_n b[n, c]|: how far the channel means have moved.

    The paper names this measure without a formula; this is its simplest form. It has the unit of the activations, so it
    compares models at one boundary, not one boundary with another.

    >>> import torch
    >>> from spear_hf.analysis import amd
    >>> amd(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([[4.0, 1.0]]))  # means (1, 2) and (4, 1)
    2.0

    Args:
        a: (N, C) pooled representations.
        b: (M, C), of the reference.

    Returns:
        At least 0; 0 where all channel means are equal.

    Raises:
        DataError: the shapes do not fit.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise DataError(
            f"amd got shapes {tuple(a.shape)} and {tuple(b.shape)}, it compares (N, C) with (M, C); "
            "pool representations to one vector an image first (`pooled`), at the same boundary of the same network"
        )
    return float((a.double().mean(0) - b.double().mean(0)).abs().mean())


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Linear Centered Kernel Alignment, ||B^T A||_F^2 / (||A^T A||_F ||B^T B||_F), with A and B centered by channel.

    It compares which images are similar in each representation (Kornblith et al. 2019). It does not change when one
    representation is rotated, shifted, or scaled as a whole. With fewer images than channels it is biased upwards.

    >>> import torch
    >>> from spear_hf.analysis import linear_cka
    >>> a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> round(linear_cka(a, 2 * a + 7), 6)
    1.0

    Args:
        a: (N, C) pooled representations.
        b: (N, D), of the same images in the same order.

    Returns:
        In [0, 1]; 1 for equal geometry, NaN where one representation is the same vector for all images.

    Raises:
        DataError: the shapes do not fit.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[0]:
        raise DataError(
            f"linear_cka got shapes {tuple(a.shape)} and {tuple(b.shape)}, it compares (N, C) with (N, D); "
            "give it pooled representations of the same images in the same order"
        )
    a, b = (z.double() - z.double().mean(0) for z in (a, b))
    norms = torch.linalg.matrix_norm(a.T @ a) * torch.linalg.matrix_norm(b.T @ b)
    return float(torch.linalg.matrix_norm(b.T @ a).square() / norms)


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """100 / N sum_n [answers_n = labels_n], in percent; both are (N,) class numbers.

    >>> import torch
    >>> from spear_hf.analysis import accuracy
    >>> accuracy(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3]))
    75.0
    """
    return 100 * float((answers == labels).double().mean())


def probe_accuracy(features: Tensor, labels: Tensor, *, c: float = 1.0, folds: int = 5, seed: int = 0) -> float:
    """The cross-validated accuracy in percent of softmax(W x + w): no image is predicted by a probe that saw its label.

    Needs scikit-learn (`pip install "spear-hf[analysis]"`).

    >>> import torch
    >>> from spear_hf.analysis import probe_accuracy
    >>> labels = torch.arange(20) % 2
    >>> probe_accuracy(labels[:, None].float(), labels)
    100.0

    Args:
        features: (N, C), frozen; each channel is standardised on the images that a probe is fitted on.
        labels: (N,) integers.
        c: inverse strength of the L2 penalty on W.
        folds: number of parts of the images; each is predicted by a probe fitted on the others.
        seed: of the parts.

    Raises:
        DataError: features and labels have different lengths, or there are fewer than two classes, or a class has fewer
            images than `folds`.
        ConfigError: scikit-learn is not installed.
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
