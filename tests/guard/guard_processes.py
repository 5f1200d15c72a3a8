"""What test_guard.py runs in two processes, and in one to compare: python tests/guard/guard_processes.py FOLDER."""

import sys
from pathlib import Path
from typing import Any

import torch

from spear_hf import Guard, GuardPolicy, Spear, get_spear_model
from spear_hf.learning.record import StepRecord
from spear_hf.utils.launch import start_accelerator
from tests.builders import images_and_labels
from tests.processes import CONFIG, base, part

SIZES = (32, 5, 1, 1) + (32,) * 20
POLICY = GuardPolicy(margin=1.0, max_entropy_rise=1.0, max_collapse=1.0, max_drift=0.1, pool=3, wait=2, trial=3)


def guarded(accelerator: Any) -> dict[str, Any]:
    """A stream with one bad image, on the last process alone, and a learning rate that makes the parameters drift."""
    tta = Spear(get_spear_model(base(), CONFIG), accelerator=accelerator, tau=0.0, learning_rate=0.1)
    guard, answers, events = Guard(tta, POLICY, accelerator=accelerator), [], []
    for number, size in enumerate(SIZES):
        x = images_and_labels(number, size)[0]
        if number == 6:
            x[-1, 0, 0, 0] = torch.nan
        answers.append(guard.step(part(x, accelerator)))
        assert isinstance(guard.last, StepRecord)
        events.append([event.split(" (on this process")[0] for event in guard.last.events])
    return {"answers": answers, "events": events}


if __name__ == "__main__":
    torch.set_num_threads(1)
    accelerator = start_accelerator(cpu=True)
    torch.save(guarded(accelerator), Path(sys.argv[1]) / f"{accelerator.process_index}.pt")
