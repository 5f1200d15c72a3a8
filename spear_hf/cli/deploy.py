"""spear-hf export: a model with its adapter as a file of another runtime."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.adapt import CheckBase
from spear_hf.cli.app import AsJson, ModelName, print_json
from spear_hf.cli.expand import expanded
from spear_hf.cli.options import WeightOptions

if TYPE_CHECKING:
    from torch import nn


@expanded()
def export(
    model: ModelName,
    output: Annotated[Path, typer.Argument(help="The file; its name ends in .onnx.")],
    weights: WeightOptions,
    adapter: Annotated[str, typer.Option(help="An adapter folder or Hub repo.")],
    check_base: CheckBase = "error",
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels; default: that of the model's preprocessing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model with a saved adapter as an ONNX file.

    The file takes pixel_values (batch, C, H, W), normalised as for the model, and gives logits (batch, classes), for a
    batch of any size. It is run by onnxruntime at batch 1, 3 and 16 first; a file that does not answer as the model is
    not written. Its metadata hold the preprocessing and the names of the classes. It learns nothing and remembers
    nothing: with BatchNorm and alpha above 0, an answer depends on the images that share its batch.

    Example: spear-hf export microsoft/resnet-50 model.onnx --adapter me/resnet50-fog
    """
    from spear_hf.adapters.names import name_of
    from spear_hf.integrations.onnx_file import export_onnx
    from spear_hf.steering.model import SpearModel

    base = weights.load(model)
    steered = SpearModel.from_pretrained(base, adapter, check_base=check_base)
    images, notes = _input_of(base, image_size)
    notes |= {"adapter": name_of(adapter), "classes": _classes_of(base)}
    written = export_onnx(steered, output, images, notes=notes)
    if as_json:
        differences = {str(count): far for count, far in written.differences.items()}
        facts = {"input_shape": list(written.input_shape), "num_classes": written.num_classes}
        print_json({"output": str(output)} | facts | {"differences": differences, **notes})
        return
    channels, height, width = written.input_shape
    print(f"input    pixel_values (batch, {channels}, {height}, {width}), {_normalised(notes)}")
    print(f"output   logits (batch, {written.num_classes})")
    checked = ", ".join(map(str, written.differences))
    print(f"checked  at batch {checked}: at most {max(written.differences.values()):.1g} of the largest logit off")
    if mixes := steered.has_batch_norms and steered.current_context().alpha:
        print(
            f"note: alpha {mixes:g} mixes the statistics of each batch in, and the file remembers none: send large ones"
        )
    print(output)


def _input_of(base: "nn.Module", image_size: int | None) -> tuple[Any, dict[str, Any]]:
    """An example of the model's input, None where its size is not known, and how images are prepared for it."""
    import torch

    from spear_hf.data.processor import load_processor
    from spear_hf.errors import DataError

    try:
        processor = load_processor(base)
    except DataError:  # the user's own model, whose preprocessing is the user's own
        return None if image_size is None else torch.randn(2, 3, image_size, image_size), {}
    height, width = processor.size if image_size is None else (image_size, image_size)
    notes = {"mean": list(processor.mean), "std": list(processor.std), "size": [height, width]}
    return torch.randn(2, processor.channels, height, width), notes


def _classes_of(base: "nn.Module") -> list[str] | None:
    from spear_hf.data.processor import load_class_names

    names = load_class_names(base)
    return None if names is None else [each[-1] for each in names]


def _normalised(notes: dict[str, Any]) -> str:
    if "mean" not in notes:
        return "normalised as your model wants it"
    mean, std = (", ".join(f"{value:.4g}" for value in notes[key]) for key in ("mean", "std"))
    return f"pixels in [0, 1] less mean {mean}, by std {std}"
