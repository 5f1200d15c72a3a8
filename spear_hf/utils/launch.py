"""Start accelerate, and notice when it started fewer processes, or fewer trackers, than were asked for."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spear_hf.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from accelerate import Accelerator


def start_accelerator(
    *, cpu: bool = False, log_with: str | None = None, folder: str | Path | None = None
) -> "Accelerator":
    """An Accelerator over every process that the launcher asked for.

    Args:
        cpu: stay on the CPU where there is a GPU; without a GPU it is implied, since several CPU processes find each
            other only then.
        log_with: trackers by name, with commas: "tensorboard", "trackio", "wandb" and what else accelerate knows. They
            are started; `end_trackers` ends them.
        folder: where trackers that write files put them.

    Raises:
        ConfigError: a tracker that accelerate does not know, or whose package is not installed; it would be left out
            without a word.
        LaunchError: `accelerate launch --cpu --num_processes 2` runs a single process and says nothing; a lone process
            that believes itself to be one of several would adapt on its own and report a wrong batch.
    """
    from accelerate import Accelerator

    names: list[Any] = [name.strip() for name in (log_with or "").split(",") if name.strip()]
    _check_trackers(names)
    accelerator = Accelerator(cpu=cpu or not _has_device(), log_with=names or None, project_dir=folder)
    asked, running = requested_processes(), accelerator.num_processes
    if asked > running:
        raise LaunchError(
            f"{asked} processes were asked for and {running} runs; on CPUs start them with "
            f"`torchrun --nproc_per_node {asked} SCRIPT`, or "
            f"`accelerate launch --multi_gpu --num_processes {asked} SCRIPT --cpu`; "
            "on GPUs `accelerate launch --num_processes N SCRIPT` takes at most as many as there are devices"
        )
    if names:
        accelerator.init_trackers("spear_hf")
    return accelerator


def end_trackers(accelerator: "Accelerator") -> None:
    """Let them write what they hold back, and log no more. `end_training()` would end the process group too."""
    for tracker in accelerator.trackers:
        tracker.finish()
    accelerator.trackers.clear()


def _check_trackers(names: list[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if unknown := sorted(set(names) - LOGGER_TYPE_TO_CLASS.keys()):
        allowed = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise ConfigError(f"log_with={unknown[0]!r} is not known; allowed are {allowed}, several with commas")
    for name in names:
        if name not in {str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()}:
            raise ConfigError(f"log_with={name!r} needs its package; pip install {name}")


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
