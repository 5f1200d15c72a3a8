"""Run a stream through some methods so that Ctrl-C, or a kill, leaves a state from which the same command goes on."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from spear_hf.cli.app import INTERRUPTED
from spear_hf.cli.images import about

if TYPE_CHECKING:
    from accelerate import Accelerator

    from spear_hf.evaluation.report import Report
    from spear_hf.evaluation.run_folder import RunFolder
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel


@dataclass
class Running:
    """The run."""

    output: str = about("Its folder.", "runs/adapt")
    save_every: int = about("Batches between two states that an interrupted run can go on from.", 20)
    fresh: bool = about("Forget the states in the folder and begin anew.", False)
    cpu: bool = about("Stay on the CPU.", False)
    log_with: str | None = about("Trackers that get each batch: tensorboard, trackio, wandb; with commas.", None)

    def accelerator(self) -> "Accelerator":
        """Of all processes, with the trackers; those that write files do so in the run's folder."""
        from spear_hf.utils.launch import start_accelerator

        return start_accelerator(cpu=self.cpu, log_with=self.log_with, folder=self.output)

    def folder(self, model: "SpearModel | None", *, is_main: bool) -> "RunFolder":
        """The run folder; without the states of an earlier run where asked."""
        from spear_hf.evaluation.run_folder import RunFolder

        folder = RunFolder(self.output, model, every=self.save_every, is_main=is_main)
        if self.fresh and is_main:
            shutil.rmtree(folder.checkpoint, ignore_errors=True)
        return folder

    def evaluate(
        self,
        methods: "Mapping[str, TTAMethod]",
        stream: Any,
        folder: "RunFolder",
        *,
        accelerator: Any,
        provenance: Mapping[str, Any],
    ) -> "Report":
        """The report of the whole stream, from where an interrupted run stopped.

        Raises:
            typer.Exit: 130, when interrupted.
            CheckpointError: the folder holds states of another run.
        """
        from spear_hf.errors import CheckpointError
        from spear_hf.evaluation.evaluate import evaluate
        from spear_hf.utils.launch import end_trackers

        try:
            return evaluate(
                methods,
                stream,
                accelerator=accelerator,
                on_batch=folder.append,
                provenance=provenance,
                checkpoint=folder.checkpoint,
                checkpoint_every=self.save_every,
            )
        except CheckpointError as error:
            raise CheckpointError(f"{error}, or begin anew with --fresh") from error
        except KeyboardInterrupt as error:
            if accelerator.is_main_process:
                print(f"\ninterrupted; {way_on(folder)}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error
        finally:
            end_trackers(accelerator)


@dataclass
class Evaluating(Running):
    """The run."""

    output: str = about("Its folder.", "runs/eval")


def way_on(folder: "RunFolder") -> str:
    """What can be done after an interruption."""
    states = sorted(folder.checkpoint.glob("step-*"))
    if not states:
        return "no state was kept yet, so the same command begins anew"
    done = int(states[-1].name.split("-")[1])
    return f"{done} batches are kept in {folder.folder}: the same command goes on from there, --fresh begins anew"
