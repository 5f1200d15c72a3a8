"""One model under examination: the inputs it answers, the trace of one forward, and checks on replica and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.chain import check_chain, check_movement, check_reach, run_cascade
from spear_hf.boundaries.inputs import candidate_inputs, no_inputs_error
from spear_hf.boundaries.probe import device_of, dtype_of, meta_replica
from spear_hf.boundaries.trace import Trace

_META = torch.device("meta")


class ProbeSession:
    """Looks at `model` without changing it.

    Searching runs on a weightless replica where there can be one; the final check runs on the model itself.

    Args:
        model: the network, on any device, meta included.
        inputs: a batch that it accepts; None derives one from the model.

    Raises:
        NoBoundariesError: the model answered none of the probe inputs.
    """

    trace: Trace

    def __init__(self, model: nn.Module, inputs: Tensor | Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.device, self.dtype = device_of(model), dtype_of(model)
        replica = None if self.device == _META else meta_replica(model)
        failures: list[str] = []
        for stand_in, device in ((replica, _META), (model, self.device)):
            if stand_in is not None and self._answers(stand_in, device, inputs, failures):
                return
        raise no_inputs_error(model, failures)

    def _answers(
        self,
        stand_in: nn.Module,
        device: torch.device,
        inputs: Tensor | Mapping[str, Any] | None,
        failures: list[str],
    ) -> bool:
        for candidate in candidate_inputs(self.model, inputs):
            placed = candidate.on(device, self.dtype)
            try:
                self.trace = Trace(stand_in, placed)
            except Exception as error:  # a wrong size may raise anything, anywhere in foreign code
                failures.append(f"{placed.describe()}: {type(error).__name__}: {str(error).strip()[:200]}")
                continue
            self.stand_in, self.placed, self.candidate = stand_in, placed, candidate
            return True
        return False

    def check(self, boundaries: Sequence[Boundary]) -> None:
        """Raise unless `boundaries` form a chain on the replica."""
        check_chain(run_cascade(self.stand_in, boundaries, self.placed))

    def verify(self, boundaries: Sequence[Boundary], *, strict: bool = True) -> None:
        """Raise unless, in the model itself, every boundary fires once and moves the logits (strict: in a chain)."""
        cascade = run_cascade(self.model, boundaries, self.candidate.first_image().on(self.device, self.dtype))
        (check_chain if strict else check_reach)(cascade)
        check_movement(cascade)
