"""The references of a run: methods that learn nothing, and clean images predicted with what each domain taught."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from spear_hf.adapters.card_metrics import MIXED
from spear_hf.baselines import BnAdapt, Source
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.learning.method import TTAMethod
from spear_hf.steering.model import SpearModel
from spear_hf.utils.distributed import BatchShard, ProcessGroup

SOURCE, STEERED = "source", "SPeaR"


def baselines(model: SpearModel, pristine: nn.Module, *, accelerator: Any = None) -> dict[str, TTAMethod]:
    """The methods that SPeaR is compared with in every run, each on its own copy of the base model.

    "source" is the base model alone. "alpha only" is the base model with mixed batch-norm statistics and no learning;
    it is left out where the adapter mixes nothing.

    >>> import copy, timm
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.evaluation.preservation import baselines
    >>> base = timm.create_model("test_resnet")
    >>> list(baselines(get_spear_model(copy.deepcopy(base)), base))
    ['source', 'alpha only']

    Args:
        model: the steered model; the alpha of its active adapter is used.
        pristine: the base model without any adapter.
        accelerator: given to the methods.
    """
    found: dict[str, TTAMethod] = {SOURCE: Source(copy.deepcopy(pristine), accelerator=accelerator)}
    alpha = 0.0 if model.active_adapter is None else model.peft_config[model.active_adapter].alpha
    if alpha > 0 and model.has_batch_norms:
        found[MIXED] = BnAdapt(copy.deepcopy(pristine), alpha, accelerator=accelerator)
    return found


class Frozen(Source):
    """A steered model that predicts with its active adapter and learns nothing.

    Under several processes it uses the batch statistics of the global batch.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.evaluation.preservation import Frozen
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> Frozen(model).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])

    Args:
        model: the steered model.
        accelerator: as for `Source`.
    """

    model: SpearModel

    def __init__(self, model: SpearModel, *, accelerator: Any = None) -> None:
        super().__init__(model, accelerator=accelerator)

    def answer(self, x: Tensor, shard: BatchShard, **further: Any) -> Tensor:
        """The logits of x, with the statistics of the global batch."""
        with self.model.sharding(shard):
            return super().answer(x, shard, **further)


def clean_along(
    model: SpearModel,
    learned: Mapping[str, Mapping[str, Tensor]],
    source: nn.Module,
    stream: Any,
    *,
    accelerator: Any = None,
) -> Report:
    """The errors on clean images after each domain: what adapting costs where there is no shift.

    A row for each domain, with the error of the source and of the model with the RSPs that this domain taught. Nothing
    is learned, and the model keeps its RSPs. Batch statistics are those of the clean batch alone: a model remembers
    none of a stream.

    >>> import copy, timm, torch
    >>> from spear_hf import SpearConfig, get_spear_model
    >>> from spear_hf.evaluation.preservation import clean_along
    >>> class Batches(list):
    ...     protocol, describe = "single", lambda self: {}
    >>> x, y = torch.zeros(2, 3, 32, 32), torch.tensor([0, 1])
    >>> clean = Batches([{"pixel_values": x, "labels": y, "domain": "clean", "is_domain_start": True}])
    >>> base = timm.create_model("test_resnet")
    >>> model = get_spear_model(copy.deepcopy(base), SpearConfig(alpha=0.0))
    >>> report = clean_along(model, {"fog/5": model.snapshot()}, base, clean)
    >>> [row.domain for row in report.rows]
    ['fog/5']

    Args:
        model: the steered model.
        learned: domain -> RSP values, in stream order, as `RunFolder.learned` holds them.
        source: the base model on its own, not the one inside `model`.
        stream: clean images with labels.
        accelerator: under several processes, all of which call this; the main one's `learned` is used.
    """
    held = {domain: {key: value.cpu() for key, value in state.items()} for domain, state in learned.items()}
    learned, options = ProcessGroup(accelerator).same(held), {"accelerator": accelerator, "progress": False}
    reference = evaluate({SOURCE: Source(source, accelerator=accelerator)}, copy.copy(stream), **options)
    n, error = reference.images, reference.mean_error(SOURCE)
    before, rows = model.snapshot(), []
    try:
        for domain, state in learned.items():
            model.restore(state)
            frozen = evaluate({STEERED: Frozen(model, accelerator=accelerator)}, copy.copy(stream), **options)
            rows.append(DomainResult(domain, n, {SOURCE: error, STEERED: frozen.mean_error(STEERED)}))
    finally:
        model.restore(before)
    return Report(rows, [SOURCE, STEERED], reference.provenance)
