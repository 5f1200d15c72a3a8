"""The corruptions of ImageNet-C, CIFAR-10-C and Tiny-ImageNet-C, computed when they are needed: uint8 in, uint8 out.

>>> import numpy as np
>>> from spear_hf.data.corruptions import corrupt, sample_rng
>>> rng = sample_rng(seed=0, preset="cifar", name="fog", severity=5, sample_id=17)
>>> foggy = corrupt(np.zeros((32, 32, 3), np.uint8), "fog", 5, rng)
"""

from spear_hf.data.corruptions.apply import STREAM_VERSION, corrupt, corrupt_batch, sample_rng
from spear_hf.data.corruptions.constants import PRESETS, Preset, resolve_preset
from spear_hf.data.corruptions.digital import reencode_jpeg
from spear_hf.data.corruptions.frost import frost_provenance
from spear_hf.data.corruptions.table import CORRUPTIONS, EXTRA_CORRUPTIONS, Corruption, resolve_corruptions

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "PRESETS",
    "STREAM_VERSION",
    "Corruption",
    "Preset",
    "corrupt",
    "corrupt_batch",
    "frost_provenance",
    "reencode_jpeg",
    "resolve_corruptions",
    "resolve_preset",
    "sample_rng",
]
