"""spear_hf: steer a frozen vision model through distribution shift, and undo it at any moment.

Public names are imported when they are first used: `import spear_hf` loads neither torch nor transformers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spear_hf.adapt import Spear, StepRecord, TTAMethod
    from spear_hf.auto import AutoSpearModel
    from spear_hf.bank import AdapterBank
    from spear_hf.base import load_base_model
    from spear_hf.boundaries import Boundary, boundary_rule, find_boundaries
    from spear_hf.config import SpearConfig
    from spear_hf.data.corruptions import corrupt
    from spear_hf.data.processor import load_processor
    from spear_hf.data.stream import load_stream
    from spear_hf.errors import SpearError
    from spear_hf.evaluate import Report
    from spear_hf.guard import Guard, GuardPolicy
    from spear_hf.methods import METHODS
    from spear_hf.model import SpearModel, get_spear_model
    from spear_hf.rsp import RSP

__version__ = "0.1.0"

_HOME = {
    "Spear": "adapt",
    "StepRecord": "adapt",
    "TTAMethod": "adapt",
    "AutoSpearModel": "auto",
    "AdapterBank": "bank",
    "load_base_model": "base",
    "Boundary": "boundaries",
    "boundary_rule": "boundaries",
    "find_boundaries": "boundaries",
    "SpearConfig": "config",
    "corrupt": "data.corruptions",
    "load_processor": "data.processor",
    "load_stream": "data.stream",
    "SpearError": "errors",
    "Report": "evaluate",
    "Guard": "guard",
    "GuardPolicy": "guard",
    "METHODS": "methods",
    "SpearModel": "model",
    "get_spear_model": "model",
    "RSP": "rsp",
}

__all__ = [
    "METHODS",
    "RSP",
    "AdapterBank",
    "AutoSpearModel",
    "Boundary",
    "Guard",
    "GuardPolicy",
    "Report",
    "Spear",
    "SpearConfig",
    "SpearError",
    "SpearModel",
    "StepRecord",
    "TTAMethod",
    "boundary_rule",
    "corrupt",
    "find_boundaries",
    "get_spear_model",
    "load_base_model",
    "load_processor",
    "load_stream",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"spear_hf.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'spear_hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
