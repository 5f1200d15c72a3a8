"""Build the base model that a name stands for: a folder, a Hub id, or a timm architecture."""

import difflib
from dataclasses import replace
from pathlib import Path

from torch import nn

from spear_hf.backbones.origin import Origin, origin_of, remember_origin
from spear_hf.errors import ModelNotFoundError


def load_base_model(
    name: str, *, revision: str | None = None, checkpoint: str | Path | None = None, pretrained: bool = True
) -> nn.Module:
    """An image classifier in evaluation mode, pretrained unless told otherwise.

    Args:
        name: a folder that transformers' `save_pretrained` wrote; a timm architecture ("resnet50.a1_in1k",
            "cifar_resnet26"); a Hub id ("microsoft/resnet-50", "timm/resnet50.tv_in1k").
        revision: the commit, branch or tag of a Hub id.
        checkpoint: a .safetensors state_dict to load, strictly, in place of the name's own weights.
        pretrained: False builds a timm architecture with random weights, which needs no download.

    Raises:
        ModelNotFoundError: the name is none of these, its weights cannot be had, or the checkpoint does not fit.
    """
    model = _build(name, revision, pretrained=pretrained and checkpoint is None)
    if checkpoint is not None:
        _load_checkpoint(model, Path(checkpoint))
    origin = origin_of(model)  # timm names a tag's weights even where they were not loaded
    known = replace(origin, revision=revision) if pretrained and checkpoint is None else Origin(origin.library, name)
    remember_origin(model, known)
    return model.eval()


def _build(name: str, revision: str | None, *, pretrained: bool) -> nn.Module:
    import timm

    import spear_hf.backbones.cifar  # noqa: F401  registers the CIFAR backbones

    path = Path(name)
    if path.exists() or name.startswith((".", "/", "~")):
        return _from_folder(path)
    if "/" not in name:
        if not timm.is_model(name):
            near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
            hint = f"did you mean one of {near}?" if near else "timm.list_models() lists what there is"
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
    except (
        OSError,
        ValueError,
    ) as error:  # huggingface_hub's errors are OSErrors, and keep their own words as the cause
        raise _no_weights(name, error) from error


def _from_folder(path: Path) -> nn.Module:
    if not (path / "config.json").is_file():
        what = "is no folder" if not path.is_dir() else "holds no config.json"
        raise ModelNotFoundError(
            f"{path} {what}; a model folder is what transformers' save_pretrained writes, "
            "for example examples/fashion_mnist/resnet"
        )
    from transformers import AutoModelForImageClassification

    try:
        return AutoModelForImageClassification.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(
            f"{path} is not an image classifier that transformers can load ({_first_line(error)})"
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
        raise ModelNotFoundError(f"{path} does not fit {type(model).__name__} ({_first_line(error)})") from error


def _no_weights(name: str, error: BaseException) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{name!r} could not be loaded ({_first_line(error)}); check the name and the connection, "
        "or give a folder, or a checkpoint with its weights"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
