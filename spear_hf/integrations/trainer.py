"""SpearTrainer: transformers' Trainer, whose `evaluate` and `predict` adapt to the images that they answer."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Trainer

from spear_hf.errors import ConfigError, LaunchError
from spear_hf.learning.method import TTAMethod
from spear_hf.steering.model import SpearModel

Answer = tuple[Tensor | None, Tensor | None, Tensor | None]


class SpearTrainer(Trainer):
    """A Trainer whose `evaluate` and `predict` take a step of `method` for each batch: it answers, then learns.

    The logits are those of the step, before the batch was learned from; labels go to the loss and the metrics alone.
    What was learned stays: `method.reset()` between two datasets begins anew. Trainer's own `evaluate` with a
    SpearModel, `Trainer(model=steered)`, learns nothing.

    Args:
        method: a Spear, or a Guard of one; under several processes with `accelerator=Accelerator()`, which makes all of
            them learn what one process would with a batch as large as all of theirs.
        args, options: as for Trainer; batches are of `per_device_eval_batch_size`, in the order of the dataset.

    Raises:
        ConfigError: a method on no SpearModel.

    >>> import tempfile, torch
    >>> from transformers import TrainingArguments, ViTConfig, ViTForImageClassification
    >>> from spear_hf import Spear, get_spear_model
    >>> config = ViTConfig(hidden_size=8, intermediate_size=8, num_attention_heads=1, image_size=16, patch_size=8)
    >>> tta = Spear(get_spear_model(ViTForImageClassification(config)))
    >>> images = [{"pixel_values": torch.randn(3, 16, 16), "labels": k % 2} for k in range(4)]
    >>> folder = tempfile.mkdtemp()
    >>> args = TrainingArguments(folder, per_device_eval_batch_size=2, disable_tqdm=True, use_cpu=True, report_to=[])
    >>> SpearTrainer(tta, args).predict(images).predictions.shape, tta.num_steps
    ((4, 2), 2)
    """

    def __init__(self, method: TTAMethod, args: Any = None, **options: Any) -> None:
        learner = getattr(method, "method", method)  # a Guard's own
        model = getattr(learner, "model", None)
        if not isinstance(model, SpearModel):
            raise ConfigError(
                f"SpearTrainer takes a learner on a SpearModel, not a {type(method).__name__}; pass "
                "Spear(get_spear_model(model))"
            )
        super().__init__(model, args, **options)
        self.method: Any = method  # whose step takes a mapping, as all here do
        self._count = getattr(getattr(learner, "processes", None), "count", 1)

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Answer:
        """(loss, logits, labels) of a batch, which is learned from afterwards."""
        if self._count != self.accelerator.num_processes:
            raise LaunchError(
                f"{self.accelerator.num_processes} processes run, and the learner knows of {self._count}; pass "
                "Spear(model, accelerator=Accelerator())"
            )
        batch: Any = self._prepare_inputs(inputs)
        labels = next((batch[name] for name in self.label_names if batch.get(name) is not None), None)
        logits = self.method.step({name: value for name, value in batch.items() if name not in self.label_names})
        with torch.no_grad():
            loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return (loss, None, None) if prediction_loss_only else (loss, logits, labels)
