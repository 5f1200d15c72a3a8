import subprocess
import sys

import pytest

import spear_hf


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "timm", "datasets", "numpy")
    code = f"import spear_hf, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", spear_hf.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(spear_hf, name).__doc__ or isinstance(getattr(spear_hf, name), dict)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spear_hf.nothing
