"""Adapter names: what they may look like, and one made from a folder or a Hub id."""

import re
from collections.abc import Container

from spear_hf.errors import AdapterNameError

RESERVED_NAMES = ("base", "none", "source")


def check_name(name: object, taken: Container[str] = ()) -> None:
    """Raise AdapterNameError for a name that could not be a folder, a key and a state_dict prefix, or that is taken."""
    if not isinstance(name, str) or not name or any(c in name for c in "./\\") or name in RESERVED_NAMES:
        raise AdapterNameError(
            f"adapter_name={name!r} is not allowed: not empty, no dot or slash, not one of {RESERVED_NAMES}; "
            'try "fog-5" rather than "fog.5"'
        )
    if name in taken:
        raise AdapterNameError(f"adapter {name!r} exists already; delete_adapter({name!r}) first, or take another name")


def name_of(source: str) -> str:
    """A name for the adapter in a folder or Hub repo: the last part of its path, "-" for what is not allowed."""
    last = source.replace("\\", "/").rstrip("/").split("/")[-1]
    name = re.sub(r"[^\w-]+", "-", last).strip("-") or "adapter"
    return f"{name}-adapter" if name in RESERVED_NAMES else name
