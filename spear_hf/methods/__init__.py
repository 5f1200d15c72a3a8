"""Methods to compare with: each satisfies TTAMethod and answers before it learns."""

from collections.abc import Callable

from spear_hf.adapt import TTAMethod
from spear_hf.methods.bn_adapt import BnAdapt
from spear_hf.methods.source import Source

METHODS: dict[str, Callable[..., TTAMethod]] = {"source": Source, "bn_adapt": BnAdapt}

__all__ = ["METHODS", "BnAdapt", "Source"]
