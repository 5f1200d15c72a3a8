"""The random numbers of one corrupted image: a function of names and numbers, never of global state."""

from hashlib import blake2b

import numpy as np

from spear_hf.errors import DataError

STREAM_VERSION = "v1"  # a change to any draw of a corruption is a new version


def sample_rng(
    seed: int, preset: str, name: str, severity: float, sample_id: int, version: str = STREAM_VERSION
) -> np.random.Generator:
    """The generator of one image: Philox keyed by (hash of version, seed, preset, corruption, severity; sample id).

    The same five values give the same image for any number of workers, in any process and any order. About 10 us.

    Args:
        seed: the seed of the stream.
        preset: "imagenet", "cifar" or "tiny".
        name: the corruption.
        severity: in (0, 5].
        sample_id: in [0, 2**64), the image's own number in its source: not a position in a shuffled or sharded stream.
        version: which definition of the draws.
    """
    if not 0 <= sample_id < 2**64:
        raise DataError(f"sample_id={sample_id} is outside [0, 2**64); pass the image's row number in its source")
    text = f"spear-c/{version}|{seed}|{preset}|{name}|{severity:g}"
    digest = blake2b(text.encode(), digest_size=8).digest()
    key = np.array([int.from_bytes(digest, "little"), sample_id], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
