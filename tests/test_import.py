import inspect
import subprocess
import sys

import pytest

import spear_hf


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "timm", "datasets", "numpy")
    code = f"import spear_hf, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", sorted(set(spear_hf.__all__) - {"METHODS"}))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(spear_hf, name)
    assert name in dir(spear_hf)
    assert (value.__name__, value.__module__.split(".")[0]) == (name, "spear_hf")
    assert inspect.getdoc(value).split("\n\n")[0].endswith(".")  # not the signature that a dataclass gets as its doc


def test_every_method_is_there_and_documented() -> None:
    assert "tent" in spear_hf.METHODS
    assert all(inspect.getdoc(method).split("\n\n")[0].endswith(".") for method in spear_hf.METHODS.values())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spear_hf.nothing
