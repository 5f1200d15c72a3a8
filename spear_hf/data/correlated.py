"""An order in which neighbouring images are of few classes, as a camera sees them: Dirichlet over time slots."""

import numpy as np


def correlated_order(labels: np.ndarray, delta: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) int64 positions into `labels`, each once.

    There are as many time slots as classes. Class k spreads its images over the slots in shares drawn from
    Dirichlet(delta, ..., delta); a slot shows its classes one after the other, in a random order.

    Args:
        labels: (n,) class of each image.
        delta: 0.1 gives long runs of a class, 10 nearly none between slots.
        rng: of the shares and of the order of classes.
    """
    classes = np.unique(labels)
    slots: list[list[np.ndarray]] = [[] for _ in classes]
    for label in classes:
        members = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(len(slots), delta))
        cuts = np.round(np.cumsum(shares[:-1]) * len(members)).astype(np.int64)
        for slot, part in zip(slots, np.split(members, cuts), strict=True):
            slot.append(part)
    return np.concatenate([slot[k] for slot in slots for k in rng.permutation(len(slot))])
