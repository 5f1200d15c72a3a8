"""Methods to compare with: each satisfies TTAMethod and answers before it learns."""

from collections.abc import Callable

from spear_hf.baselines.bn_adapt import BnAdapt
from spear_hf.baselines.buffer import Buffer
from spear_hf.baselines.cmf import Cmf
from spear_hf.baselines.cotta import Cotta
from spear_hf.baselines.deyo import Deyo
from spear_hf.baselines.eata import Eata, Eta
from spear_hf.baselines.published import published
from spear_hf.baselines.roid import Roid
from spear_hf.baselines.rotta import Rotta
from spear_hf.baselines.sar import Sar
from spear_hf.baselines.source import Source
from spear_hf.baselines.tent import Tent
from spear_hf.learning.method import TTAMethod

METHODS: dict[str, Callable[..., TTAMethod]] = {
    "source": Source,
    "bn_adapt": BnAdapt,
    "tent": Tent,
    "eata": Eata,
    "eta": Eta,
    "sar": Sar,
    "deyo": Deyo,
    "roid": Roid,
    "cmf": Cmf,
    "buffer": Buffer,
    "cotta": Cotta,
    "rotta": Rotta,
}

__all__ = [
    "METHODS",
    "BnAdapt",
    "Buffer",
    "Cmf",
    "Cotta",
    "Deyo",
    "Eata",
    "Eta",
    "Roid",
    "Rotta",
    "Sar",
    "Source",
    "Tent",
    "published",
]
