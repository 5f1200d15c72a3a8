"""The documentation site builds without a warning, and holds what it is for."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import spear_hf
from spear_hf.cli import app
from tests.conftest import OFFLINE, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=OFFLINE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def pages(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}


def test_every_public_name_has_its_place_in_the_api(site: Path) -> None:
    text = "".join(pages(site / "api").values())
    assert [name for name in spear_hf.__all__ if f'id="spear_hf.{name}"' not in text] == []


def test_every_option_of_every_command_is_on_its_page(site: Path) -> None:
    text = (site / "command_line.html").read_text(encoding="utf-8")
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    flags = {flag for command in commands.values() for option in command.params for flag in option.opts}
    assert [name for name in commands if f'id="spear-hf-{name}"' not in text] == []
    assert [flag for flag in sorted(flags) if flag.startswith("--") and flag not in text] == []


def test_the_site_loads_nothing_from_elsewhere_and_knows_no_path_of_this_machine(site: Path) -> None:
    for name, text in pages(site).items():
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?:[^"]*', text) == [], name
        assert str(ROOT) not in text, name


def test_equations_and_examples_are_shown_as_such(site: Path) -> None:
    method, learning = (site / "method.html").read_text(), (site / "api" / "learning.html").read_text()
    assert method.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == 8
    assert "arithmatex" not in method
    assert '<span class="gp">' in learning  # a prompt
    assert "<blockquote>" not in learning


def test_parts_of_the_readme_are_on_their_pages(site: Path) -> None:
    found = pages(site)
    assert 'href="benchmarks/results/guard.html"' in found["guard.html"]
    assert not any("--8&lt;--" in text or "--8<--" in text for text in found.values())
