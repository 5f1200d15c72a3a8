"""The run options that the commands and the examples share: the model's weights, and the run itself."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spear_hf.cli.expand import about
from spear_hf.cli.refusals import INTERRUPTED, at_the_end

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from spear_hf.evaluation.prediction_file import PredictionFile
    from spear_hf.evaluation.report import Report
    from spear_hf.evaluation.run_folder import RunFolder
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel


@dataclass
class WeightOptions:
    """Weights of the model.

    >>> WeightOptions(revision="v1").num_classes is None
    True
    """

    revision: str | None = about("The commit, branch or tag of a Hub id.", None)
    checkpoint: str | None = about(
        "A file of weights for the name's architecture: safetensors, .pth, .pth.tar, .ckpt.", None
    )
    checkpoint_entry: str | None = about("The entry of that file that holds the weights; found by default.", None)
    num_classes: int | None = about("Classes of the head; default: what the checkpoint has.", None)
    labels: str | None = about(
        "Classes of a model of images and texts (CLIP, SigLIP): names with commas, or a text file, one a line.", None
    )
    templates: str | None = about(
        'Prompt for a label, which stands at {}, or a text file of prompts, one a line; default: "a photo of a {}."',
        None,
    )

    def load(self, model: str) -> "nn.Module":
        """The model with these weights; a name "package.module:factory" runs the user's own code."""
        from spear_hf.backbones.factory import build_own, is_factory
        from spear_hf.backbones.load import load_base_model
        from spear_hf.backbones.weights import check_weights, put_weights, read_weights
        from spear_hf.cli.image_options import words_of
        from spear_hf.errors import ConfigError

        words: dict[str, Any] = {
            "labels": words_of("labels", self.labels, ","),
            "templates": words_of("templates", self.templates),
        }
        if not is_factory(model):
            return load_base_model(model, **vars(self) | words)
        if self.labels is not None:
            raise ConfigError(f"labels={self.labels!r} is not allowed for {model}; give them in your own code")
        own = build_own(model, **({} if self.num_classes is None else {"num_classes": self.num_classes}))
        if self.checkpoint is not None:
            put_weights(own, read_weights(self.checkpoint, self.checkpoint_entry), self.checkpoint)
        check_weights(own, model)
        return own.eval()


@dataclass
class RunOptions:
    """The run.

    >>> RunOptions(cpu=True).accelerator().num_processes
    1
    """

    output: Path = about("Folder of the results.", Path("runs/adapt"))
    cpu: bool = about("Use the CPU even if there is a GPU.", False)
    log_with: str | None = about("Trackers that log each batch: tensorboard, trackio, wandb; with commas.", None)

    def accelerator(self) -> "Accelerator":
        """An Accelerator over all processes, with the trackers started; their files go to the run's folder.

        Raises:
            ConfigError: the output folder is a file.
        """
        from spear_hf.errors import ConfigError
        from spear_hf.utils.launch import start_accelerator
        from spear_hf.utils.logging import verbosity_from_environment

        verbosity_from_environment()
        if blocking := [path for path in (self.output, *self.output.parents) if path.is_file()]:
            raise ConfigError(f"output={str(self.output)!r} is not allowed, {blocking[0]} is a file; name a folder")

        return start_accelerator(cpu=self.cpu, log_with=self.log_with, folder=self.output)


@dataclass
class ResumableRunOptions(RunOptions):
    """The run; an interrupted one is resumed by the same command.

    >>> ResumableRunOptions(output=Path("runs/fog")).folder(None, is_main=False).folder.as_posix()
    'runs/fog'
    """

    save_every: int = about("Batches between two checkpoints, from which an interrupted run is resumed.", 20)
    fresh: bool = about("Delete all of an earlier run in the folder and start again.", False)
    predictions: Path | None = about(
        "File of the answers: .csv, .jsonl or .parquet; default: predictions.csv in the output folder.", None
    )
    restrict_classes: bool = about("Answer only classes that the images' labels have; the table says so.", False)
    page: bool = about("Write report.html, a page with figures, at the end.", True)

    def answers(self) -> "PredictionFile":
        """The file of predictions.

        Raises:
            ConfigError: a name that ends in something else, or that is in the way.
        """
        from spear_hf.evaluation.prediction_file import PredictionFile

        return PredictionFile(self.predictions or self.output / "predictions.csv")

    def folder(self, model: "SpearModel | None", *, is_main: bool) -> "RunFolder":
        """The run folder, locked until the command ends; `fresh` deletes all of an earlier run in it.

        Raises:
            OutputError: another process writes to it, or it cannot be written to.
        """
        from spear_hf.evaluation.run_folder import RunFolder

        folder = RunFolder(self.output, model, is_main=is_main)
        if is_main:
            folder.lock()
            at_the_end(folder.unlock)
            if self.fresh:
                folder.clear()
        return folder

    def evaluate(
        self,
        methods: "Mapping[str, TTAMethod]",
        stream: Any,
        folder: "RunFolder",
        *,
        accelerator: Any,
        provenance: Mapping[str, Any],
        answers: "PredictionFile",
        class_names: Sequence[str] | None = None,
        domain_names: Mapping[str, str] | None = None,
    ) -> "Report":
        """The report of the whole stream; an interrupted run continues from its last checkpoint.

        Raises:
            typer.Exit: 130, after Ctrl-C.
            CheckpointError: the folder holds checkpoints of another run.
        """
        from spear_hf.errors import CheckpointError
        from spear_hf.evaluation.evaluate import evaluate
        from spear_hf.utils.launch import end_trackers

        try:
            report = evaluate(
                methods,
                stream,
                accelerator=accelerator,
                on_batch=folder.append,
                on_predictions=answers.append if accelerator.is_main_process else None,
                class_names=class_names,
                domain_names=domain_names,
                restrict_classes=self.restrict_classes,
                provenance=provenance,
                checkpoint=folder.checkpoint,
                checkpoint_every=self.save_every,
                keep={"run folder": folder},
            )
            if folder.is_repeated:
                report.provenance["shown_again"] = True
                if accelerator.is_main_process:
                    print(f"{self.output} holds this run already; shown again, --fresh runs it anew", file=sys.stderr)
            return report
        except CheckpointError as error:
            raise CheckpointError(f"{error}, or start again with --fresh") from error
        except KeyboardInterrupt as error:
            if accelerator.is_main_process:
                print(f"\ninterrupted; {_how_to_resume(folder)}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error
        finally:
            end_trackers(accelerator)


def _how_to_resume(folder: "RunFolder") -> str:
    """What the user can do after an interruption."""
    checkpoints = sorted(folder.checkpoint.glob("step-*"))
    if not checkpoints:
        return "there is no checkpoint yet, so the same command starts again"
    done = int(checkpoints[-1].name.split("-")[1])
    return f"{done} batches are saved in {folder.folder}: the same command continues there, --fresh starts again"
