"""AutoSpearModel: the base and the adapter from one name."""

from pathlib import Path
from typing import Any

from spear_hf.adapters.adapter_config import AdapterConfig, read_config
from spear_hf.adapters.download import Token, fetch
from spear_hf.backbones.load import load_base_model
from spear_hf.backbones.origin import is_hub_id
from spear_hf.errors import AdapterFormatError
from spear_hf.steering.loading import CheckBase, load_spear_model
from spear_hf.steering.logits_reader import Logits
from spear_hf.steering.model import SpearModel


class AutoSpearModel:
    """Builds the base that an adapter was learned on, then steers it; not to be instantiated."""

    def __init__(self) -> None:
        raise TypeError("AutoSpearModel is not instantiated; call AutoSpearModel.from_pretrained(adapter)")

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        revision: str | None = None,
        subfolder: str | None = None,
        token: Token = None,
        base_model: str | None = None,
        checkpoint: str | Path | None = None,
        adapter_name: str = "default",
        check_base: CheckBase = "error",
        inputs: Any = None,
        logits: Logits | None = None,
    ) -> SpearModel:
        """A SpearModel over the base that the adapter names, pinned to the commit it was learned on.

        Args:
            source, revision, subfolder, token: the adapter, as for `spear_hf.adapters.download.fetch`.
            base_model: a name for `load_base_model`, in place of the one that the adapter gives.
            checkpoint: the base's weights, where its name has none of its own.
            adapter_name, check_base, inputs, logits: as for `SpearModel.from_pretrained`.

        Raises:
            AdapterFormatError: the adapter does not say how to build its base, or, coming from the Hub, names a place
                on this machine.
            ModelNotFoundError: the base cannot be had; and what `SpearModel.from_pretrained` raises.
        """
        folder = fetch(source, revision=revision, subfolder=subfolder, token=token)
        config = read_config(folder)
        name = base_model or named_base(config, is_local=Path(source).expanduser().exists())
        pinned = config.origin.revision if base_model is None else None
        words: dict[str, Any] = {"labels": config.head.labels, "templates": config.head.templates}
        base = load_base_model(name, revision=pinned, checkpoint=checkpoint, **(words if config.head.labels else {}))
        options: dict[str, Any] = {"check_base": check_base, "inputs": inputs, "logits": logits}
        return load_spear_model(base, folder, adapter_name=adapter_name, **options)


def named_base(config: AdapterConfig, *, is_local: bool) -> str:
    """The name that `load_base_model` is to build; a file from the Hub may not name a folder of this machine."""
    name, way_out = config.origin.name, 'pass base_model="..." or use SpearModel.from_pretrained(your_base, ...)'
    if name is None or config.origin.library == "torch":
        raise AdapterFormatError(f"this adapter does not say how to build its base, a {config.base_class}; {way_out}")
    is_architecture = "/" not in name and "\\" not in name and not name.startswith((".", "~"))
    if not is_local and (Path(name).exists() or not (is_hub_id(name) or is_architecture)):
        raise AdapterFormatError(
            f"this adapter comes from the Hub and names the base {name!r}, a place here; {way_out}"
        )
    return name
