"""Build a base model from a folder, a Hub id, or the name of an architecture of timm or torchvision."""

import difflib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from spear_hf.backbones.origin import Origin, as_folder, origin_of, remember_origin
from spear_hf.backbones.torchvision_models import PREFIX, build_torchvision, torchvision_names
from spear_hf.backbones.weights import check_weights, classes_in, put_weights, read_weights
from spear_hf.backbones.zero_shot import ZeroShotClassifier
from spear_hf.errors import ModelNotFoundError
from spear_hf.utils.validation import first_line

logger = logging.getLogger(__name__)


def load_base_model(
    name: str,
    *,
    revision: str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_entry: str | None = None,
    num_classes: int | None = None,
    pretrained: bool = True,
    labels: Sequence[str] | None = None,
    templates: Sequence[str] | str | None = None,
) -> nn.Module:
    """An image classifier in evaluation mode, with pretrained weights by default.

    Args:
        name: a folder that transformers' `save_pretrained` or timm's `save_for_hf` wrote, also as timm's
            "local-dir:FOLDER"; a timm architecture ("resnet50.a1_in1k", "cifar_resnet26"); a Hub id of transformers or
            timm ("microsoft/resnet-50", "timm/resnet50.tv_in1k", "hf-hub:me/net"); or a torchvision architecture
            ("torchvision:resnet50", or without the prefix where timm has none of that name).
        revision: the commit, branch or tag of a Hub id.
        checkpoint: a file of weights, loaded strictly instead of the name's own: safetensors, or what `torch.save`
            wrote (.pth, .pth.tar, .ckpt), also inside a training state and with prefixes such as "module.".
        checkpoint_entry: the entry of that file that holds the weights; None finds it.
        num_classes: of the head; None takes what the checkpoint has.
        pretrained: False builds the architecture with random weights.
        labels, templates: for a transformers model of images and texts (CLIP, SigLIP), which then classifies by
            these labels: see `ZeroShotClassifier`. Its tokenizer is loaded from the same place.

    >>> from spear_hf import load_base_model
    >>> load_base_model("test_resnet", pretrained=False).num_classes
    1000

    Raises:
        ModelNotFoundError: the name is none of these, its weights cannot be loaded or have no trained head, or the
            checkpoint does not fit.
    """
    name = name.removeprefix("local-dir:").removeprefix("hf-hub:")
    if num_classes is not None and num_classes < 2:
        raise ModelNotFoundError(f"num_classes={num_classes} is not allowed; a classifier has 2 classes or more")
    if templates is not None and labels is None:
        raise ModelNotFoundError(f"templates={templates!r} was given without labels=; give the classes too, or neither")
    if labels is not None:
        if "/" not in name and not Path(name).exists():
            raise ModelNotFoundError(
                f"labels= was given, and {name!r} is neither a folder nor a Hub id (owner/name) of a model of images "
                "and texts, such as openai/clip-vit-base-patch32; leave labels out for a classifier"
            )
        if checkpoint is not None or num_classes is not None:
            raise ModelNotFoundError("checkpoint= and num_classes= were given with labels=; leave them out")
        return _zero_shot(name, revision, labels, templates).eval()
    if checkpoint is None:
        if pretrained and num_classes is not None:
            raise ModelNotFoundError(
                f"num_classes={num_classes} without a checkpoint would be a head that was never trained; pass "
                "checkpoint=, the file of the weights"
            )
        model = _build(name, revision, pretrained, num_classes)
    else:
        model = _from_checkpoint(name, revision, checkpoint, checkpoint_entry, num_classes)
    origin = origin_of(model)  # timm names the weights of a tag even if they were not loaded
    if name.startswith(PREFIX) or not _is_timm_or_transformers(name):
        origin = Origin("torch", f"{PREFIX}{name.removeprefix(PREFIX)}")
    elif Path(name).expanduser().exists():
        origin = Origin(origin.library, as_folder(name))
    elif pretrained and checkpoint is None:
        origin = replace(origin, revision=revision)
    else:
        origin = Origin(origin.library, name)
    remember_origin(model, origin)
    check_weights(model, str(checkpoint or name))
    return model.eval()


def _zero_shot(
    name: str, revision: str | None, labels: Sequence[str], templates: Sequence[str] | str | None
) -> nn.Module:
    """The transformers model of images and texts, as a classifier of these labels."""
    from transformers import AutoModel, AutoTokenizer

    where: dict[str, Any] = {"trust_remote_code": False, "revision": revision or "main"}
    try:
        model, tokenizer = AutoModel.from_pretrained(name, **where), AutoTokenizer.from_pretrained(name, **where)
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_weights(name, error) from error
    check_weights(model, name)
    origin = origin_of(model)
    is_folder = Path(name).expanduser().exists()
    origin = Origin(origin.library, as_folder(name)) if is_folder else replace(origin, revision=revision)
    remember_origin(model, origin)
    return ZeroShotClassifier(model, labels, tokenizer, templates)


def _from_checkpoint(
    name: str, revision: str | None, checkpoint: str | Path, entry: str | None, num_classes: int | None
) -> nn.Module:
    """The architecture with the head that the weights have."""
    weights = read_weights(checkpoint, entry)
    model = _build(name, revision, False, num_classes)
    found = classes_in(model, weights)
    if found is not None and num_classes is not None:
        raise ModelNotFoundError(
            f"{checkpoint} has {found} classes, num_classes={num_classes}; leave num_classes out to take those of "
            "the file"
        )
    if found is not None:
        model = _build(name, revision, False, found)
    if others := put_weights(model, weights, checkpoint):
        logger.warning("%s also holds %s, which are not of the model", checkpoint, ", ".join(others[:3]))
    return model


def _build(name: str, revision: str | None, pretrained: bool, num_classes: int | None) -> nn.Module:
    path = Path(name).expanduser()
    if path.exists() or name.startswith((".", "/", "~")):
        return _from_folder(path, pretrained, num_classes)
    if name.startswith(PREFIX) or "/" not in name:
        return _from_name(name, pretrained, num_classes)
    try:
        if name.startswith("timm/") or _is_timm_config(_hub_config(name, revision)):
            return _from_timm(f"hf-hub:{name}" + (f"@{revision}" if revision else ""), pretrained, num_classes)
        return _from_transformers(name, pretrained, num_classes, revision=revision or "main")
    except (OSError, ValueError, RuntimeError) as error:  # errors of huggingface_hub are OSErrors
        if isinstance(error, ModelNotFoundError):
            raise
        raise _no_weights(name, error) from error


def _from_name(name: str, pretrained: bool, num_classes: int | None) -> nn.Module:
    """The architecture of timm, or else of torchvision."""
    import timm

    bare = name.removeprefix(PREFIX)
    is_timm = bare == name and _is_timm_or_transformers(name)
    if not is_timm and bare not in torchvision_names():
        near = difflib.get_close_matches(bare.split(".")[0], timm.list_models() + torchvision_names(), n=3)
        hint = f"did you mean one of {near}?" if near else "timm.list_models() lists the architectures"
        raise ModelNotFoundError(
            f"{name!r} is no folder, no architecture of timm or torchvision and no Hub id (owner/name); {hint}"
        )
    try:
        if is_timm:
            return _from_timm(name, pretrained, num_classes)
        return build_torchvision(bare, pretrained=pretrained, num_classes=num_classes)
    except (RuntimeError, OSError) as error:
        raise _no_weights(name, error) from error


def _from_timm(name: str, pretrained: bool, num_classes: int | None) -> nn.Module:
    import timm

    head: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    return timm.create_model(name, pretrained=pretrained, **head)


def _is_timm_or_transformers(name: str) -> bool:
    """Whether a name is not one of torchvision's alone."""
    import timm

    import spear_hf.backbones.cifar  # noqa: F401  registers the CIFAR backbones with timm

    return "/" in name or Path(name).exists() or timm.is_model(name)


def _from_folder(path: Path, pretrained: bool, num_classes: int | None) -> nn.Module:
    if not (path / "config.json").is_file():
        what = "is no folder" if not path.is_dir() else "holds no config.json"
        raise ModelNotFoundError(
            f"{path} {what}; give a folder that transformers' save_pretrained or timm's save_for_hf wrote, for example "
            "examples/fashion_mnist/resnet; a file of weights goes to checkpoint=, beside the name of its architecture"
        )
    try:
        if _is_timm_config(json.loads((path / "config.json").read_text(encoding="utf-8"))):
            return _from_timm(f"local-dir:{path}", pretrained, num_classes)
        return _from_transformers(str(path), pretrained, num_classes)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, ModelNotFoundError):
            raise
        raise ModelNotFoundError(
            f"{path} is not an image classifier that transformers or timm can load ({first_line(error)}); "
            "save the model again with save_pretrained, or give the architecture and checkpoint="
        ) from error


def _from_transformers(name: str, pretrained: bool, num_classes: int | None, **where: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForImageClassification

    where["trust_remote_code"] = False  # not given, transformers would ask at the console, and run code on a "y"
    if not pretrained:
        head = {} if num_classes is None else {"num_labels": num_classes}
        return AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(name, **head, **where))
    found: Any = AutoModelForImageClassification.from_pretrained(name, output_loading_info=True, **where)
    model, loading = found
    parameters = dict(model.named_parameters())
    if untrained := [key for key in loading["missing_keys"] if key in parameters]:
        reads = hasattr(model.config, "text_config")
        raise ModelNotFoundError(
            f"{name} has no weights for {', '.join(sorted(untrained)[:3])}, so its answers would be random; give "
            + ("the classes of this model of images and texts with labels=, or " if reads else "")
            + "a model that was trained to classify, or its weights with checkpoint="
        )
    return model


def _hub_config(name: str, revision: str | None) -> Any:
    """The config.json of a Hub repo, from the cache where it is there."""
    from huggingface_hub import hf_hub_download

    return json.loads(Path(hf_hub_download(name, "config.json", revision=revision)).read_text(encoding="utf-8"))


def _is_timm_config(config: Any) -> bool:
    """Whether timm wrote it; transformers' files name a model_type, also those of a wrapped timm model."""
    return isinstance(config, dict) and "architecture" in config and "model_type" not in config


def _no_weights(name: str, error: BaseException) -> ModelNotFoundError:
    way_out = (
        "if it is private or gated, log in first: hf auth login"
        if _is_refused(error)
        else "check the name and the connection, or give a folder, or a checkpoint with its weights"
    )
    return ModelNotFoundError(f"{name!r} could not be loaded ({first_line(error)}); {way_out}")


def _is_refused(error: BaseException | None) -> bool:
    """Whether the Hub said that there is no such repo for this account, anywhere in the chain of errors."""
    from huggingface_hub.errors import HfHubHTTPError

    while error is not None:
        response = error.response if isinstance(error, HfHubHTTPError) else None
        if response is not None and response.status_code in (401, 403, 404):
            return True
        error = error.__cause__ or error.__context__
    return False
