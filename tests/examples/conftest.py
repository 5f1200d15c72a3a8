"""The examples in this process."""

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spear_hf import METHODS
from tests.builders import invoked
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def examples_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports find examples/, as they do for a script there; afterwards its modules and methods are gone again."""
    monkeypatch.syspath_prepend(EXAMPLES)
    methods = dict(METHODS)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(EXAMPLES)):
            del sys.modules[name]
    METHODS.clear()
    METHODS.update(methods)


@pytest.fixture
def example(examples_path: None) -> Callable[..., Any]:
    """example("adapt", "--limit", "8") is the result of `python examples/adapt.py --limit 8`."""
    return lambda name, *words: invoked(importlib.import_module(name).app, *words)
