"""JSON that every reader takes: NaN and infinity, which JSON does not have, become null."""

import json
import math
from collections.abc import Mapping
from typing import Any


def strict_json(data: Any, *, indent: int | None = None) -> str:
    """JSON text of plain values, with null for numbers that are not finite.

    >>> from spear_hf.utils.strict_json import strict_json
    >>> strict_json({"loss": float("nan"), "errors": [1.5, float("inf")]})
    '{"loss": null, "errors": [1.5, null]}'
    """
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data
