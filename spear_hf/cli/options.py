"""The run options that the commands and the examples share: the model's weights, the images, and the run itself."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spear_hf.cli.app import INTERRUPTED

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from spear_hf.data.image_stream import ImageStream
    from spear_hf.evaluation.report import Report
    from spear_hf.evaluation.run_folder import RunFolder
    from spear_hf.learning.method import TTAMethod
    from spear_hf.steering.model import SpearModel


def about(text: str, default: Any) -> Any:
    """A dataclass field with a default and a help text.

    >>> about("Images in a batch.", 64).default
    64
    """
    return field(default=default, metadata={"help": text})


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

    def load(self, model: str) -> "nn.Module":
        """The model with these weights; a name "package.module:factory" runs the user's own code."""
        from spear_hf.backbones.factory import build_own, is_factory
        from spear_hf.backbones.load import load_base_model
        from spear_hf.backbones.weights import put_weights, read_weights

        if not is_factory(model):
            return load_base_model(model, **vars(self))
        own = build_own(model, **({} if self.num_classes is None else {"num_classes": self.num_classes}))
        if self.checkpoint is not None:
            put_weights(own, read_weights(self.checkpoint, self.checkpoint_entry), self.checkpoint)
        return own.eval()


@dataclass
class ImageOptions:
    """Images and corruptions.

    >>> ImageOptions(corruptions="fog").clean(100).corruptions
    'clean'
    """

    corruptions: str = about(
        'Names with commas, a group (noise, blur, weather, digital), "all" (the 15), "extra", or "clean".', "all"
    )
    severity: float = about("From 1 to 5; fractions interpolate the constants.", 5.0)
    preset: str = about(
        'Constants of the corruptions: "imagenet", "cifar" or "tiny"; "auto" goes by the image size.', "auto"
    )
    protocol: str = about(
        '"single" resets before each corruption; "continual", "gradual" and "mixed" never reset.', "single"
    )
    batch_size: int = about("Images in a batch, over all processes.", 64)
    limit: int = about("Images of each corruption, a seeded sample; 0 takes all.", 0)
    split: str = about('Split of the dataset; "auto" takes test or validation.', "auto")
    seed: int = about("Seed of the image order and of the corruptions.", 0)
    num_workers: int = about("Processes that prepare batches ahead.", 0)

    def clean(self, limit: int) -> "ImageOptions":
        """The same options for `limit` images without corruption."""
        return replace(self, corruptions="clean", protocol="single", limit=limit)

    def stream(self, dataset: Any, base: "nn.Module") -> "ImageStream":
        """The stream of these images, preprocessed for a model, with labels in the model's numbering.

        Args:
            dataset: what `load_stream` takes.
            base: the model.
        """
        from spear_hf.data.load_stream import load_stream
        from spear_hf.data.processor import load_class_names, load_processor

        return load_stream(
            dataset,
            corruptions=self.corruptions,
            severity=self.severity,
            preset=self.preset,
            protocol=self.protocol,
            batch_size=self.batch_size,
            limit=self.limit or None,
            split=self.split,
            seed=self.seed,
            num_workers=self.num_workers,
            processor=load_processor(base),
            class_names=load_class_names(base),
        )


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
        """An Accelerator over all processes, with the trackers started; their files go to the run's folder."""
        from spear_hf.utils.launch import start_accelerator

        return start_accelerator(cpu=self.cpu, log_with=self.log_with, folder=self.output)


@dataclass
class ResumableRunOptions(RunOptions):
    """The run; an interrupted one is resumed by the same command.

    >>> ResumableRunOptions(save_every=5).folder(None, is_main=True).every
    5
    """

    save_every: int = about("Batches between two checkpoints, from which an interrupted run is resumed.", 20)
    fresh: bool = about("Delete the checkpoints in the folder and start again.", False)

    def folder(self, model: "SpearModel | None", *, is_main: bool) -> "RunFolder":
        """The run folder; `fresh` deletes the checkpoints of an earlier run in it."""
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
        """The report of the whole stream; an interrupted run continues from its last checkpoint.

        Raises:
            typer.Exit: 130, after Ctrl-C.
            CheckpointError: the folder holds checkpoints of another run.
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
