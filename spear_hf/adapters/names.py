"""Adapter names: which are allowed, and how to make one from a folder or a Hub id."""

import re
from collections.abc import Container

from spear_hf.errors import AdapterNameError

RESERVED_NAMES = ("base", "none", "source")


def check_name(name: object, taken: Container[str] = ()) -> None:
    """Raise AdapterNameError for a name that is taken, or that cannot be a folder, a key and a state_dict prefix.

    >>> from spear_hf.adapters.names import check_name
    >>> check_name("fog-5", taken=["snow"])
    """
    if not isinstance(name, str) or not name or any(c in name for c in "./\\") or name in RESERVED_NAMES:
        raise AdapterNameError(
            f"adapter_name={name!r} is not allowed: not empty, no dot or slash, not one of {RESERVED_NAMES}; "
            'try "fog-5" rather than "fog.5"'
        )
    if name in taken:
        raise AdapterNameError(f"adapter {name!r} exists already; delete_adapter({name!r}) first, or use another name")


def name_of(source: str) -> str:
    """An adapter name for a folder or Hub repo: the last part of its path, with "-" for characters not allowed.

    >>> from spear_hf.adapters.names import name_of
    >>> name_of("me/resnet50-fog.5")
    'resnet50-fog-5'
    """
    last = source.replace("\\", "/").rstrip("/").split("/")[-1]
    name = re.sub(r"[^\w-]+", "-", last).strip("-") or "adapter"
    return f"{name}-adapter" if name in RESERVED_NAMES else name
