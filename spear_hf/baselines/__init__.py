"""Methods to compare with: each satisfies TTAMethod and answers before it learns."""

from spear_hf.baselines.cmf import Cmf
from spear_hf.baselines.cotta import Cotta
from spear_hf.baselines.deyo import Deyo
from spear_hf.baselines.eata import Eata, Eta
from spear_hf.baselines.frozen import BnAdapt, Source
from spear_hf.baselines.methods import METHODS, MethodFactory, spear
from spear_hf.baselines.published import published
from spear_hf.baselines.roid import Roid
from spear_hf.baselines.rotta import Rotta
from spear_hf.baselines.sar import Sar
from spear_hf.baselines.tent import Buffer, Tent

__all__ = [
    "METHODS",
    "BnAdapt",
    "Buffer",
    "Cmf",
    "Cotta",
    "Deyo",
    "Eata",
    "Eta",
    "MethodFactory",
    "Roid",
    "Rotta",
    "Sar",
    "Source",
    "Tent",
    "published",
    "spear",
]
