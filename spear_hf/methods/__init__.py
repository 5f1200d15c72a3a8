"""Methods to compare with: each satisfies TTAMethod and answers before it learns."""

from collections.abc import Callable

from spear_hf.adapt import TTAMethod
from spear_hf.methods.bn_adapt import BnAdapt
from spear_hf.methods.buffer import Buffer
from spear_hf.methods.cmf import Cmf
from spear_hf.methods.cotta import Cotta
from spear_hf.methods.deyo import Deyo
from spear_hf.methods.eata import Eata, Eta
from spear_hf.methods.published import published
from spear_hf.methods.roid import Roid
from spear_hf.methods.rotta import Rotta
from spear_hf.methods.sar import Sar
from spear_hf.methods.source import Source
from spear_hf.methods.tent import Tent

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
