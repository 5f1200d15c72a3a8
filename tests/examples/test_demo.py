"""examples/demo.py as a user runs it: a real process, asked over HTTP and looked at by a real browser."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.conftest import OFFLINE, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the demo is."""
    command = [sys.executable, "examples/demo.py", "--port", "0", "--batch-size", "16"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=OFFLINE) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        yield found[0]
        process.terminate()


def ask(address: str, path: str, **body: Any) -> dict[str, Any]:
    with urlopen(address + path, json.dumps(body).encode()) as answer:
        return json.load(answer)


def test_a_step_answers_before_and_after_and_counts_both(address: str) -> None:
    ask(address, "forget")
    first = ask(address, "step", corruption="contrast", severity=5)
    assert (first["total"], first["record"]["step"], len(first["images"])) == (16, 0, 8)
    for image in first["images"]:
        assert image["png"].startswith("data:image/png;base64,")
        for side in ("before", "after"):
            probabilities = [p for _, p in image[side]]
            assert probabilities == sorted(probabilities, reverse=True)
            assert len(probabilities) == 5
    later = [ask(address, "step", corruption="contrast", severity=5) for _ in range(7)][-1]
    assert later["total"] == 128
    assert later["errors"]["after"] < later["errors"]["before"] - 20
    assert later["record"]["gamma_deviation"] > 0


def test_forgetting_is_the_identity_again(address: str) -> None:
    ask(address, "step", corruption="fog", severity=5)
    assert ask(address, "forget") == {}
    clean = ask(address, "step", corruption="clean", severity=1)
    assert (clean["record"]["step"], clean["total"]) == (0, 16)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"corruption": "fogg", "severity": 3}, "did you mean fog"),
        ({"corruption": "fog", "severity": 9}, "severity=9 is not in"),
        ({"corruption": "fog"}, "severity"),
    ],
)
def test_what_does_not_exist_is_refused_in_words(address: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(HTTPError) as refusal:
        ask(address, "step", **body)
    assert refusal.value.code == 400
    assert message in json.load(refusal.value)["error"]


def test_a_browser_shows_answers_and_counts(address: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here; install one to look at the page as a person does")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    url = f"{address}?corruption=contrast&steps=3"
    command = [browser, *options, "--virtual-time-budget=60000", url]
    page = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    assert '<b id="total">48</b>' in page
    assert page.count('class="panel card"') == 8
    assert len(re.findall(r'<circle cx="\d', page)) == 3
    assert '<p id="error" role="alert"></p>' in page


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:7860"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Content-Length": "10000000000"}, 413),
        ({"Content-Length": "-1"}, 413),
        ({}, 200),
    ],
)
def test_it_answers_its_own_host_and_origin_and_bounded_bodies(
    address: str, headers: dict[str, str], status: int
) -> None:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.putrequest("POST", "/forget", skip_host="Host" in headers)
    for name, value in ({"Content-Length": "2"} | headers).items():
        connection.putheader(name, value)
    connection.endheaders(b"{}")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == status
    answer.close()
    connection.close()


def test_a_body_as_deep_as_a_body_can_be_is_refused(address: str) -> None:
    with pytest.raises(HTTPError) as refused, urlopen(f"{address}forget", b"[" * 9_999):
        pass
    assert refused.value.code == 400
    refused.value.close()
