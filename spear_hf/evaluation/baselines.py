"""What SPeaR is compared with in every run: the source, and the source with mixed batch statistics and no learning."""

import copy
from typing import Any

from torch import nn

from spear_hf.adapters.card_metrics import MIXED
from spear_hf.baselines import BnAdapt, Source
from spear_hf.learning.method import TTAMethod
from spear_hf.steering.model import SpearModel

SOURCE = "source"


def baselines(model: SpearModel, pristine: nn.Module, *, accelerator: Any = None) -> dict[str, TTAMethod]:
    """ "source", and "alpha only" where the model mixes statistics: each on a copy of the base of its own.

    Args:
        model: with its adapter, whose alpha is taken.
        pristine: the base as it came in.
        accelerator: as for the methods.
    """
    found: dict[str, TTAMethod] = {SOURCE: Source(copy.deepcopy(pristine), accelerator=accelerator)}
    alpha = 0.0 if model.active_adapter is None else model.peft_config[model.active_adapter].alpha
    if alpha > 0 and model.has_batch_norms:
        found[MIXED] = BnAdapt(copy.deepcopy(pristine), alpha, accelerator=accelerator)
    return found
