"""The corruptions of ImageNet-C, CIFAR-C and Tiny-ImageNet-C, computed on the fly: uint8 in, uint8 out.

rng = sample_rng(seed=0, preset="cifar", name="fog", severity=5, sample_id=17)
foggy = corrupt(image, "fog", 5, rng)
"""

from spear_hf.data.corruptions.apply import corrupt, corrupt_batch
from spear_hf.data.corruptions.digital import reencode_jpeg
from spear_hf.data.corruptions.frost import frost_provenance
from spear_hf.data.corruptions.presets import PRESETS, Preset
from spear_hf.data.corruptions.rng import STREAM_VERSION, sample_rng
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
    "sample_rng",
]
