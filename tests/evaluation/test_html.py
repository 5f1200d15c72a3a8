"""The page of a run: what it says is in the report, all that it shows is in it."""

import base64
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spear_hf.cli import app
from spear_hf.errors import DataError
from spear_hf.evaluation import html
from spear_hf.evaluation.html import render_page, write_page
from spear_hf.evaluation.report import DomainResult
from tests.builders import a_run

REPORT, STEPS = a_run()


class Page(HTMLParser):
    """The cells of its tables, and every attribute that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag  # every element is closed where it should be

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(REPORT, STEPS, REPORT)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are slow, and some tests look at the words alone."""
    monkeypatch.setattr(html, "figures_of", lambda *_: {})


def test_the_numbers_are_those_of_the_report(text: str) -> None:
    cells = Page(text).cells
    for row in REPORT.rows:
        start = cells.index(row.domain)
        gain = row.error["source"] - row.error["SPeaR"]
        expected = [str(row.n), *(f"{row.error[m]:.2f}" for m in REPORT.methods), f"{gain:+.2f}"]
        assert cells[start + 1 : start + 5] == expected
    assert cells[cells.index("mean") :][:5] == ["mean", "24", "40.00", "35.00", "+5.00"]


def test_a_gain_is_blue_and_a_loss_is_red(text: str) -> None:
    assert re.findall(r'<span class="(\w*)">(\S+)</span></td>', text) == [
        ("better", "+30.00"),
        ("worse", "-20.00"),
        ("better", "+5.00"),
    ]


@pytest.mark.usefixtures("no_figures")
def test_columns_of_the_methods_without_an_entry_are_left_out() -> None:
    cells = Page(render_page(REPORT)).cells
    assert cells[-9:] == ["method", "error %", "learned", "source", "40.00", "0", "SPeaR", "35.00", "96"]
    full = replace(REPORT, seconds={"SPeaR": 2.4}, memory={"SPeaR": 2**21}, adaptation={"SPeaR": {"adapted": 3}})
    assert Page(render_page(full)).cells[-6:] == ["SPeaR", "35.00", "96", "100.00", "2.0", "3 adapted"]


def test_a_page_without_labels_speaks_of_answers() -> None:
    row = DomainResult("photos", 24, {}, entropy={"source": 0.4, "SPeaR": 0.3}, changed={"source": 0.0, "SPeaR": 12.5})
    facts = {"model": "me/net", "notes": ["a note"], "left_out": ["a.jpg"], "config": {"tau": 0.0}}
    page = render_page(replace(REPORT, rows=[row], provenance=facts), [replace(step, wrong={}) for step in STEPS])
    assert "<h1>net: answers for 24 images</h1>" in page
    assert Page(page).cells[:10] == [
        "images",
        "n",
        "source",
        "SPeaR",
        "other answers",
        "photos",
        "24",
        "0.400",
        "0.300",
        "12.5 %",
    ]
    assert "a note" in page
    assert "left out 1 images that could not be read: a.jpg" in page
    assert "error so far" not in page
    assert "how often it was right" not in page


def test_nothing_is_loaded_from_elsewhere(text: str) -> None:
    assert all(load.startswith("data:") for load in Page(text).loads)
    assert not re.search(r"https?:|url\(|@import|<script", text)
    assert "default-src 'none'" in text


def test_every_figure_is_in_the_page_with_words_for_it(text: str) -> None:
    figures = re.findall(r'<img id="(\w+)" alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert [name for name, _, _ in figures] == list(html.CAPTIONS)
    assert all(base64.b64decode(data).rstrip().endswith(b"</svg>") for _, _, data in figures)


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(text: str) -> None:
    assert render_page(REPORT, STEPS, REPORT) == text


@pytest.mark.usefixtures("no_figures")
def test_names_from_outside_are_text_and_not_markup() -> None:
    evil = DomainResult("<script>alert(1)</script>", 8, {"source": 1.0, "SPeaR": 2.0})
    text = render_page(replace(REPORT, rows=[evil], provenance={"<b>": "{{ x }} </pre><img src=http://x>"}))
    assert "<script" not in text
    assert "<img src" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<summary>&lt;b&gt;</summary><pre>{{ x }} &lt;/pre&gt;" in text


@pytest.mark.usefixtures("no_figures")
def test_events_of_a_guard_are_listed() -> None:
    assert STEPS[0].step is not None
    guarded = replace(STEPS[0], step=replace(STEPS[0].step, events=("collapse: reset to the identity",)))
    assert Page(render_page(REPORT, [guarded])).cells[-3:] == ["0", "fog/5", "collapse: reset to the identity"]
    assert "1 more in steps.jsonl" in render_page(REPORT, [guarded] * (html.MAX_EVENTS + 1))
    assert "What the guard did" not in render_page(REPORT, STEPS)


def test_provenance_is_all_there(text: str) -> None:
    assert "<details><summary>config</summary><pre>{\n  &#34;tau&#34;: 0.25\n}</pre></details>" in text


def test_a_folder_without_a_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no report\.json"):
        write_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page as the command writes it."""
    REPORT.to_json(tmp_path / "report.json")
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--figures"])
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "report.html")), done.output
    assert (tmp_path / "figures" / "error_by_domain.png").is_file()
    return tmp_path / "report.html"


@pytest.mark.slow
def test_the_command_writes_the_page(page: Path) -> None:
    assert Page(page.read_text()).cells[:5] == ["domain", "n", "source", "SPeaR", "gain"]


@pytest.mark.slow
def test_a_browser_shows_every_figure(page: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here; install one to look at the page as a person does")
    probe = tmp_path / "probe.html"  # the page without its policy, which forbids scripts, and a script that looks
    text = re.sub(r"<meta http-equiv[^>]+>", "", page.read_text())
    script = "onload=()=>{document.title=[...document.images].map(i=>i.complete&&i.naturalWidth>100).join()}"
    probe.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([browser, *options, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "<title>true,true</title>" in done.stdout
