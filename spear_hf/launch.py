"""Start accelerate, and notice when it started fewer processes than were asked for."""

import os
from typing import TYPE_CHECKING

import torch

from spear_hf.errors import LaunchError

if TYPE_CHECKING:
    from accelerate import Accelerator


def start_accelerator(*, cpu: bool = False) -> "Accelerator":
    """An Accelerator over every process that the launcher asked for.

    Args:
        cpu: stay on the CPU where there is a GPU; without a GPU it is implied, since several CPU processes find each
            other only then.

    Raises:
        LaunchError: `accelerate launch --cpu --num_processes 2` runs a single process and says nothing; a lone process
            that believes itself to be one of several would adapt on its own and report a wrong batch.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu or not _has_device())
    asked, running = requested_processes(), accelerator.num_processes
    if asked > running:
        raise LaunchError(
            f"{asked} processes were asked for and {running} runs; on CPUs start them with "
            f"`torchrun --nproc_per_node {asked} SCRIPT`, or "
            f"`accelerate launch --multi_gpu --num_processes {asked} SCRIPT --cpu`; "
            "on GPUs `accelerate launch --num_processes N SCRIPT` takes at most as many as there are devices"
        )
    return accelerator


def requested_processes() -> int:
    """How many processes the launcher was told to start; 1 where nothing says so."""
    return max(int(os.environ.get("WORLD_SIZE", 1)), _asked_of_accelerate())


def _asked_of_accelerate() -> int:
    """--num_processes on the command line of the `accelerate launch` above, which tells this process nothing."""
    import psutil

    try:
        parent = psutil.Process().parent()
        words = parent.cmdline() if parent is not None else []
    except psutil.Error:
        return 1
    if "launch" not in words or not any("accelerate" in word for word in words[: words.index("launch")]):
        return 1
    options = words[words.index("launch") + 1 :]
    for i, word in enumerate(options):
        name, _, value = word.replace("-", "_").partition("=")
        if name == "__num_processes":
            value = value or (options[i + 1] if i + 1 < len(options) else "")
            return int(value) if value.isdigit() else 1
        if word.endswith(".py"):  # from here on the words belong to the script
            break
    return 1


def _has_device() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
