"""How far two sets of representations are apart: AMD and CKA as pure functions of tensors."""

import torch
from torch import Tensor

from spear_hf.errors import DataError


def amd(a: Tensor, b: Tensor) -> float:
    """Activation Mean Deviation, 1/C sum_c |mean_n a[n, c] - mean_n b[n, c]|: how far channel means have moved.

    The paper names this measure and gives no formula; this is the plainest reading. It has the unit of the
    activations, so it compares models at one boundary, not one boundary with another.

    Args:
        a: (N, C) pooled representations.
        b: (M, C), of the reference.

    Returns:
        At least 0; 0 where all channel means are equal.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise DataError(
            f"amd got shapes {tuple(a.shape)} and {tuple(b.shape)}, it compares (N, C) with (M, C); "
            "pool representations to one vector an image first (`pooled`), at the same boundary of the same network"
        )
    return float((a.double().mean(0) - b.double().mean(0)).abs().mean())


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Linear Centered Kernel Alignment, ||B^T A||_F^2 / (||A^T A||_F ||B^T B||_F), A and B centered by channel.

    It compares which images are alike in either representation (Kornblith et al. 2019), and does not change when
    one of them is rotated, shifted or scaled as a whole. With fewer images than channels it is too high by chance.

    Args:
        a: (N, C) pooled representations.
        b: (N, D), of the same images in the same order.

    Returns:
        In [0, 1]; 1 for equal geometry, NaN where one of them is the same vector for all images.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[0]:
        raise DataError(
            f"linear_cka got shapes {tuple(a.shape)} and {tuple(b.shape)}, it compares (N, C) with (N, D); "
            "give it pooled representations of the same images in the same order"
        )
    a, b = (z.double() - z.double().mean(0) for z in (a, b))
    norms = torch.linalg.matrix_norm(a.T @ a) * torch.linalg.matrix_norm(b.T @ b)
    return float(torch.linalg.matrix_norm(b.T @ a).square() / norms)
