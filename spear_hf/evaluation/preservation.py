"""What adapting costs where there is no shift: clean images, answered with what each domain of a stream taught."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from spear_hf.baselines import Source
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.frozen import Frozen
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.steering.model import SpearModel
from spear_hf.utils.distributed import ProcessGroup

SOURCE, STEERED = "source", "SPeaR"


def clean_along(
    model: SpearModel,
    learned: Mapping[str, Mapping[str, Tensor]],
    source: nn.Module,
    stream: Any,
    *,
    accelerator: Any = None,
) -> Report:
    """A row for each domain: errors on the same clean images of the source, and of the model as that domain left it.

    Nothing is learned, and the model's RSPs are what they were. Statistics that the model remembers of a stream are set
    aside: they are of other images.

    Args:
        learned: domain -> RSPs, in stream order, as a `RunFolder` keeps them.
        source: the base as it came in, apart from the model's own.
        stream: of clean images, with labels.
        accelerator: under several processes, each of which calls this; what the main one learned is taken.
    """
    held = {domain: {key: value.cpu() for key, value in state.items()} for domain, state in learned.items()}
    learned, options = ProcessGroup(accelerator).same(held), {"accelerator": accelerator, "progress": False}
    reference = evaluate({SOURCE: Source(source, accelerator=accelerator)}, copy.copy(stream), **options)
    n, error = reference.images, reference.mean_error(SOURCE)
    before, rows = model.snapshot(), []
    try:
        for domain, state in learned.items():
            model.restore(state)
            with model.stream_statistics.set_aside():
                frozen = evaluate({STEERED: Frozen(model, accelerator=accelerator)}, copy.copy(stream), **options)
            rows.append(DomainResult(domain, n, {SOURCE: error, STEERED: frozen.mean_error(STEERED)}))
    finally:
        model.restore(before)
    return Report(rows, [SOURCE, STEERED], reference.provenance)
