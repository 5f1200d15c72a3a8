"""Start accelerate, and refuse a launch that gave fewer processes or trackers than were asked for."""

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spear_hf.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from accelerate import Accelerator


_NAMED = ("trackio", "wandb")  # whose runs get a name; others take the folder itself


def start_accelerator(
    *, cpu: bool = False, log_with: str | None = None, folder: str | Path | None = None
) -> "Accelerator":
    """An Accelerator over all processes of the launcher; the process group is destroyed when the process ends.

    >>> start_accelerator(cpu=True).num_processes
    1

    Args:
        cpu: use the CPU even if there is a GPU. Without a GPU the CPU is always used.
        log_with: names of trackers, separated by commas: "tensorboard", "trackio", "wandb" or another one that
            accelerate supports. They are started here; `end_trackers` ends them.
        folder: the folder for the files of trackers that write files; trackio and wandb name their run after it.

    Raises:
        ConfigError: accelerate does not support a tracker, or its package is not installed. Accelerate itself would
            ignore such a tracker silently.
        LaunchError: several processes were asked for and only one runs, as after `accelerate launch --cpu
            --num_processes 2`. That process would adapt on all images alone and report a wrong batch size.
    """
    from accelerate import Accelerator

    names: list[Any] = [name.strip() for name in (log_with or "").split(",") if name.strip()]
    _check_trackers(names)
    accelerator = Accelerator(cpu=cpu or not _has_device(), log_with=names or None, project_dir=folder)
    refuse_fewer_processes(accelerator.num_processes)
    if accelerator.num_processes > 1:  # gloo's threads may abort a process that ends with its group
        atexit.register(accelerator.state.destroy_process_group)
    if names:
        named = {} if folder is None else {name: {"name": Path(folder).resolve().name} for name in _NAMED}
        accelerator.init_trackers("spear_hf", init_kwargs=named)
    return accelerator


def end_trackers(accelerator: "Accelerator") -> None:
    """Flush and close the trackers of an accelerator; its process group stays open, unlike after `end_training()`.

    >>> end_trackers(start_accelerator(cpu=True))
    """
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


def refuse_fewer_processes(running: int) -> None:
    """Raise LaunchError where one process runs and the launcher was told to start several.

    >>> refuse_fewer_processes(1)
    """
    if running == 1 and (asked := requested_processes()) > 1:
        raise LaunchError(
            f"several processes were asked for and 1 runs; on CPUs start them with "
            f"`torchrun --nproc_per_node {asked} SCRIPT`, or "
            f"`accelerate launch --multi_gpu --num_processes {asked} SCRIPT --cpu`; on GPUs `accelerate launch "
            "--num_processes N SCRIPT` takes at most as many as there are devices; "
            "for a single process, unset WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )


def requested_processes() -> int:
    """How many processes the launcher was told to start: WORLD_SIZE, or at least 2 after `accelerate launch`, or 1.

    `accelerate launch` starts a single process on a machine without several GPUs, whatever `--num_processes`, or the
    `num_processes` of its configuration file, says. It does not pass that number on. It exports MASTER_PORT, though,
    if and only if the number is above 1, so 2 stands for "several". A MASTER_PORT that was in the environment before
    cannot be told apart from that, so the error of `start_accelerator` says to unset it.

    >>> requested_processes()
    1
    """
    environment = os.environ
    if "WORLD_SIZE" in environment:  # torchrun, and accelerate with several GPUs
        return int(environment["WORLD_SIZE"])
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in environment  # set in every process that it launches
    return 2 if by_accelerate and "MASTER_PORT" in environment else 1


def _has_device() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
