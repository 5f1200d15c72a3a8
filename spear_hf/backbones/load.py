"""Build a base model from a folder, a Hub id, or the name of a timm architecture."""

import difflib
from dataclasses import replace
from pathlib import Path

from torch import nn

from spear_hf.backbones.origin import Origin, origin_of, remember_origin
from spear_hf.errors import ModelNotFoundError
from spear_hf.utils.validation import first_line


def load_base_model(
    name: str, *, revision: str | None = None, checkpoint: str | Path | None = None, pretrained: bool = True
) -> nn.Module:
    """An image classifier in evaluation mode, with pretrained weights by default.

    Args:
        name: a folder that transformers' `save_pretrained` wrote; a timm architecture ("resnet50.a1_in1k",
            "cifar_resnet26"); a Hub id ("microsoft/resnet-50", "timm/resnet50.tv_in1k").
        revision: the commit, branch or tag of a Hub id.
        checkpoint: a .safetensors state_dict, loaded strictly instead of the name's own weights.
        pretrained: False builds a timm architecture with random weights, which needs no download.

    >>> from spear_hf import load_base_model
    >>> load_base_model("test_resnet", pretrained=False).num_classes
    1000

    Raises:
        ModelNotFoundError: the name is none of these, its weights cannot be loaded, or the checkpoint does not fit.
    """
    model = _build(name, revision, pretrained=pretrained and checkpoint is None)
    if checkpoint is not None:
        _load_checkpoint(model, Path(checkpoint))
    origin = origin_of(model)  # timm names the weights of a tag even if they were not loaded
    known = replace(origin, revision=revision) if pretrained and checkpoint is None else Origin(origin.library, name)
    remember_origin(model, known)
    return model.eval()


def _build(name: str, revision: str | None, *, pretrained: bool) -> nn.Module:
    import timm

    import spear_hf.backbones.cifar  # noqa: F401  registers the CIFAR backbones with timm

    path = Path(name)
    if path.exists() or name.startswith((".", "/", "~")):
        return _from_folder(path)
    if "/" not in name:
        if not timm.is_model(name):
            near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
            hint = f"did you mean one of {near}?" if near else "timm.list_models() lists the architectures"
            raise ModelNotFoundError(f"{name!r} is no folder, no timm architecture and no Hub id (owner/name); {hint}")
        try:
            return timm.create_model(name, pretrained=pretrained)
        except (RuntimeError, OSError) as error:
            raise _no_weights(name, error) from error
    try:
        if name.startswith("timm/"):
            return timm.create_model(f"hf-hub:{name}" + (f"@{revision}" if revision else ""), pretrained=pretrained)
        from transformers import AutoModelForImageClassification

        return AutoModelForImageClassification.from_pretrained(name, revision=revision or "main")
    except (OSError, ValueError) as error:  # errors of huggingface_hub are OSErrors
        raise _no_weights(name, error) from error


def _from_folder(path: Path) -> nn.Module:
    if not (path / "config.json").is_file():
        what = "is no folder" if not path.is_dir() else "holds no config.json"
        raise ModelNotFoundError(
            f"{path} {what}; give a folder that transformers' save_pretrained wrote, "
            "for example examples/fashion_mnist/resnet"
        )
    from transformers import AutoModelForImageClassification

    try:
        return AutoModelForImageClassification.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(
            f"{path} is not an image classifier that transformers can load ({first_line(error)})"
        ) from error


def _load_checkpoint(model: nn.Module, path: Path) -> None:
    from safetensors.torch import load_file

    if not path.is_file():
        raise ModelNotFoundError(
            f"there is no checkpoint {path}; give a .safetensors file, or none for the name's own weights"
        )
    try:
        model.load_state_dict(load_file(path))
    except (RuntimeError, OSError) as error:
        raise ModelNotFoundError(f"{path} does not fit {type(model).__name__} ({first_line(error)})") from error


def _no_weights(name: str, error: BaseException) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{name!r} could not be loaded ({first_line(error)}); check the name and the connection, "
        "or give a folder, or a checkpoint with its weights"
    )
