"""A steered classifier as an ONNX file: RSPs inside, a batch of any size, and checked before it is in its place.

The file answers as the model does when it is called: alpha mixes the statistics of each batch alone. It learns nothing,
and it remembers nothing from one batch to the next.
"""

import errno
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.inputs import candidate_inputs
from spear_hf.boundaries.probe_forward import device_of, dtype_of
from spear_hf.errors import ConfigError, ExportError
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of
from spear_hf.utils.files import temporary_name, writing
from spear_hf.utils.validation import first_line

BATCHES = (1, 3, 16)
"""At these batch sizes a file must answer as the model."""

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
"""Largest difference of a logit, as a part of the largest logit; 0.03 for half precision."""

IN_ONE_FILE = 1_900_000_000
"""Bytes of weights that the file itself holds, since protobuf takes 2 GiB; more go to `<name>.data` beside it."""

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class OnnxFile:
    """What was written.

    Args:
        path: of the file.
        input_shape: (C, H, W) of an image; the batch is of any size.
        num_classes: K of the logits (B, K).
        differences: batch size -> how far its logits were from the model's, as a part of the largest logit.

    >>> OnnxFile(Path("model.onnx"), (3, 32, 32), 10, {1: 0.0}).input_shape
    (3, 32, 32)
    """

    path: Path
    input_shape: tuple[int, ...]
    num_classes: int
    differences: dict[int, float]


def export_onnx(
    model: SpearModel, path: str | Path, images: Tensor | None = None, *, notes: Mapping[str, Any] | None = None
) -> OnnxFile:
    """Write a model and its active adapter as an ONNX file, from `pixel_values` (B, C, H, W) to `logits` (B, K).

    The file is written beside its place, run by onnxruntime at batch 1, 3 and 16, and moved there only if it answers
    as the model; what was there is kept otherwise. Nothing of the model changes.

    Args:
        model: inside `disable_adapter()` the file is the source's.
        path: ends in .onnx.
        images: (B, C, H, W) as the model's processor makes them; their size becomes the file's. None takes the size
            that the model was built for.
        notes: further entries of the file's metadata, beside the adapter and its alpha.

    Raises:
        ConfigError: a package that is missing, or another ending.
        ExportError: a model that cannot be written, or whose file answers otherwise.
        OutputError: a disk that is full or read-only.
    """
    path = Path(path)
    _check_packages()
    if path.suffix != ".onnx":
        raise ConfigError(f"output={path.name!r} is not allowed; the name of the file ends in .onnx")
    batches = _batches(model, images)
    answers = [_answer(model, x) for x in batches]
    described = {"adapter": model.active_adapters, "alpha": _alpha(model)} | dict(notes or {})
    with writing(path):  # before the export, which takes minutes
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = temporary_name(path)
        folder.mkdir()
        try:
            program = _traced(model, batches[1])
            _describe(program.model, {key: value for key, value in described.items() if value is not None})
            written = folder / path.name
            program.save(written, external_data=_bytes_of(model) > IN_ONE_FILE)
            differences = _check(written, batches, answers)
            _move(written, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return OnnxFile(path, tuple(batches[0].shape[1:]), answers[0].shape[1], differences)


class _Logits(nn.Module):
    """The logits alone of what a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return logits_of(self.model(pixel_values))


def _check_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f'an ONNX file needs {", ".join(missing)}; pip install "spear-hf[export]"')


def _batches(model: SpearModel, images: Tensor | None) -> list[Tensor]:
    """Random images of each size in BATCHES, of the shape, mean and spread of `images`."""
    like = _example(model) if images is None else images
    if like.dim() < 2 or len(like) == 0 or not like.is_floating_point():
        raise ExportError(f"images are {like.dtype} of shape {tuple(like.shape)}; allowed are floats (B, C, H, W)")
    generator = torch.Generator().manual_seed(0)
    mean, spread = like.float().mean().item(), like.float().std().nan_to_num(1.0).clamp_min(1e-3).item()
    device, dtype = device_of(model.base_model), dtype_of(model.base_model)
    made = [torch.randn(count, *like.shape[1:], generator=generator) * spread + mean for count in BATCHES]
    return [x.to(device, dtype) for x in made]


def _example(model: SpearModel) -> Tensor:
    """A batch that the base accepts, as its configuration says."""
    base, why = model.base_model, "no size was tried"
    for candidate in candidate_inputs(base):
        inputs = [*candidate.args, *candidate.kwargs.values()]
        if len(inputs) != 1 or not inputs[0].is_floating_point():
            raise ExportError(
                f"{type(base).__name__} takes {candidate.describe()}; a file can be written of models that take one "
                "batch of images (B, C, H, W)"
            )
        try:
            with torch.no_grad():
                model(inputs[0].to(device_of(base), dtype_of(base)))
        except Exception as error:  # a wrong size may raise anything, anywhere in the model's code
            why = first_line(error)
            continue
        return inputs[0]
    raise ExportError(f"no image size is known that {type(base).__name__} takes ({why}); pass images=")


@torch.no_grad()
def _answer(model: SpearModel, x: Tensor) -> Tensor:
    return logits_of(model(x)).float().cpu()


def _traced(model: SpearModel, x: Tensor) -> Any:
    """The ONNXProgram of a model, for batches of any size."""
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                _Logits(model).eval(),
                (x,),
                None,
                input_names=["pixel_values"],
                output_names=["logits"],
                dynamo=True,
                dynamic_shapes=({0: batch},),
                verbose=False,
            )
    except Exception as error:  # torch.onnx wraps whatever the model's code raised
        raise ExportError(
            f"{type(model.base_model).__name__} cannot be written as ONNX ({_cause(error)}); torch.compile and "
            "torch.export may take it all the same"
        ) from error
    assert program is not None
    shape = program.model.graph.inputs[0].shape
    if shape is None or isinstance(shape[0], int):
        raise ExportError(f"the ONNX exporter fixed the batch of {type(model.base_model).__name__} to {len(x)} images")
    return program


def _cause(error: BaseException) -> str:
    """The first line of the error that began it, with its class."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)[:200]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, the exporter's warnings about itself are not shown: what it wrote is checked."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _alpha(model: SpearModel) -> float | None:
    """How much of a batch's statistics the file mixes in; None where it mixes none."""
    alpha = model.current_context().alpha
    return alpha if alpha > 0 and model.has_batch_norms else None


def _describe(written: Any, notes: Mapping[str, Any]) -> None:
    """Put the notes into an onnx_ir model in place of torch's: those hold the paths of this machine."""
    import spear_hf

    for graph in (written.graph, *(function.graph for function in written.functions.values())):
        graph.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    written.metadata_props.clear()
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in notes.items()}
    written.metadata_props.update({"spear_hf": spear_hf.__version__} | texts)


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _check(path: Path, batches: Sequence[Tensor], answers: Sequence[Tensor]) -> dict[int, float]:
    """Batch size -> the largest relative difference; ExportError where the file does not answer as the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    tolerance = TOLERANCE.get(batches[0].dtype, 0.03)
    found: dict[int, float] = {}
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for x, answer in zip(batches, answers, strict=True):
            (logits,) = session.run(["logits"], {"pixel_values": x.cpu().numpy()})
            difference = (torch.from_numpy(logits).float() - answer).abs().max() / answer.abs().max().clamp_min(1e-6)
            found[len(x)] = float(difference)
    except Exception as error:  # onnxruntime has no common class of its errors; numpy has no bfloat16
        raise ExportError(
            f"onnxruntime does not run this model's file ({first_line(error)[:200]}); nothing was written"
        ) from error
    if off := {count: far for count, far in found.items() if not far <= tolerance}:
        shown = ", ".join(f"batch {count}: {far:.2g}" for count, far in off.items())
        raise ExportError(
            f"the file's logits are not the model's ({shown} of the largest logit, allowed is {tolerance:g}); nothing "
            "was written"
        )
    return found


def _move(written: Path, path: Path) -> None:
    """Into its place: the weights first, where they are in a file of their own."""
    weights = written.with_name(written.name + ".data")
    if weights.exists():
        weights.replace(path.with_name(weights.name))
    written.replace(path)
