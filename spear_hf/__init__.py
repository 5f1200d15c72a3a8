"""spear_hf: steer a frozen vision model through distribution shift, and undo it at any moment.

Public names are imported when they are first used: `import spear_hf` loads neither torch nor transformers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spear_hf.backbones.load import load_base_model
    from spear_hf.baselines import METHODS
    from spear_hf.boundaries import Boundary, boundary_rule, find_boundaries
    from spear_hf.config import SpearConfig
    from spear_hf.data.corruptions import corrupt
    from spear_hf.data.load_stream import load_stream
    from spear_hf.data.processor import load_processor
    from spear_hf.errors import SpearError
    from spear_hf.evaluation.calibration.calibration import Calibration, calibrate
    from spear_hf.evaluation.evaluate import evaluate
    from spear_hf.evaluation.predictions import Prediction, predict
    from spear_hf.evaluation.report import Report
    from spear_hf.guard import Guard, GuardPolicy
    from spear_hf.learning.bank import AdapterBank
    from spear_hf.learning.method import TTAMethod
    from spear_hf.learning.record import StepRecord
    from spear_hf.learning.spear import Spear
    from spear_hf.steering.auto import AutoSpearModel
    from spear_hf.steering.model import SpearModel, get_spear_model
    from spear_hf.steering.rsp import RSP
    from spear_hf.utils import logging as logging

__version__ = "0.1.0"

_HOME = {
    "Spear": "learning.spear",
    "StepRecord": "learning.record",
    "TTAMethod": "learning.method",
    "AutoSpearModel": "steering.auto",
    "AdapterBank": "learning.bank",
    "load_base_model": "backbones.load",
    "Boundary": "boundaries",
    "boundary_rule": "boundaries",
    "find_boundaries": "boundaries",
    "SpearConfig": "config",
    "corrupt": "data.corruptions",
    "load_processor": "data.processor",
    "load_stream": "data.load_stream",
    "SpearError": "errors",
    "Calibration": "evaluation.calibration.calibration",
    "calibrate": "evaluation.calibration.calibration",
    "Prediction": "evaluation.predictions",
    "predict": "evaluation.predictions",
    "Report": "evaluation.report",
    "evaluate": "evaluation.evaluate",
    "Guard": "guard",
    "GuardPolicy": "guard",
    "METHODS": "baselines",
    "SpearModel": "steering.model",
    "get_spear_model": "steering.model",
    "RSP": "steering.rsp",
}

__all__ = [
    "METHODS",
    "RSP",
    "AdapterBank",
    "AutoSpearModel",
    "Boundary",
    "Calibration",
    "Guard",
    "GuardPolicy",
    "Prediction",
    "Report",
    "Spear",
    "SpearConfig",
    "SpearError",
    "SpearModel",
    "StepRecord",
    "TTAMethod",
    "boundary_rule",
    "calibrate",
    "corrupt",
    "evaluate",
    "find_boundaries",
    "get_spear_model",
    "load_base_model",
    "load_processor",
    "load_stream",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name == "logging":  # a module, as in transformers: spear_hf.logging.set_verbosity_info()
        return importlib.import_module("spear_hf.utils.logging")
    if name in _HOME:
        value = getattr(importlib.import_module(f"spear_hf.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'spear_hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
