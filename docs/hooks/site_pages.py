"""The hook of the documentation site (mkdocs.yml): pages made from files of the repository, and equations as MathML.

Pages keep the paths that their files have in the repository, so that the links of README.md, parts of which are
included, are right on the site too.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from command_page import command_page
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from notebook_page import notebook_page

COPIED = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/results/**/*", "hub_cards/**/*.md")
NOTEBOOKS = ("quickstart", "bring_your_model")

_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
_PART = re.compile(r'^--8<-- "README\.md:(\w+)"$', re.M)
_LINK_OUT = re.compile(r"\[`?([^]`]+)`?\]\(\.\./[^)]*\)")


def on_config(config: MkDocsConfig) -> None:
    """Every page of results and every page of docs/ has its place in the navigation, also those that came later."""
    root = Path(config.config_file_path).parent
    nav: dict[str, Any] = {title: place for entry in config.nav or [] for title, place in entry.items()}
    named = json.dumps(config.nav)
    for title, folder, inside in (
        ("Benchmarks", "benchmarks/results", "benchmarks/results/"),
        ("Reference", "docs", ""),
    ):
        found = sorted(inside + path.name for path in (root / folder).glob("*.md"))
        nav[title] += [name for name in found if name not in named]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files of the repository."""
    root = Path(config.config_file_path).parent
    for path in sorted(path for pattern in COPIED for path in root.glob(pattern) if path.is_file()):
        files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    for name in NOTEBOOKS:
        text = notebook_page(root / "examples" / f"{name}.ipynb")
        files.append(File.generated(config, f"{name}.md", content=text))
    files.append(File.generated(config, "command_line.md", content=command_page(root / "examples")))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: Any) -> str:
    """Parts of README.md in their places; a link to a file that is no page becomes the file's name."""
    readme = (Path(config.config_file_path).parent / "README.md").read_text(encoding="utf-8")
    whole = _PART.sub(lambda found: _part(readme, found[1]), markdown)
    return _LINK_OUT.sub(r"`\1`", whole).replace("](docs/", "](")


def _part(text: str, name: str) -> str:
    """What stands between the two marks of a name."""
    start, end = (f"<!-- --8<-- [{side}:{name}] -->\n" for side in ("start", "end"))
    return text.split(start)[1].split(end)[0]


def on_page_content(content: str, **_: Any) -> str:
    r"""Equations as MathML, which browsers show by themselves; "\[...\]" stands on a line of its own."""

    def shown(found: re.Match[str]) -> str:
        kind, text = found.groups()
        return convert(html.unescape(text), display="block" if kind == "div" else "inline")

    return _EQUATION.sub(shown, content)
