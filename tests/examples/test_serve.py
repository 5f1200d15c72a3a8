"""examples/serve.py as a user runs it: a real process on a free port, many client threads, a kill, and a restart."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from spear_hf.utils.state_file import read_state
from tests.conftest import OFFLINE, ROOT

pytestmark = pytest.mark.slow

STREAMS = [f"cam-{i}" for i in range(16)]
WORDS = ["--cpu", "--port", "0", "--max-streams", "10", "--save-every", "0.5", "--tau", "0"]


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := BytesIO(), "PNG")
    return file.getvalue()


PICTURES = [picture(seed) for seed in range(16)]


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address."""
    command = [sys.executable, "-W", "error", "examples/serve.py", "--streams-folder", str(folder), *WORDS, *words]
    with subprocess.Popen(command, cwd=ROOT, env=OFFLINE, stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(120, process.kill)  # readline below has no timeout of its own
        late.start()
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield process, found[0]
        finally:
            late.cancel()
            process.kill()


def asked(address: str, requests: int, on_answer: threading.Event | None = None, after: int = 0) -> list[str]:
    """The streams of the requests that were answered, of `requests` from 8 threads over 16 streams."""
    answered: list[str] = []
    with httpx.Client(base_url=address, timeout=30, trust_env=False) as client:

        def ask(i: int) -> None:
            name = STREAMS[i % 16]
            try:
                answer = client.post(f"/predict/{name}", content=PICTURES[i % 16])
            except httpx.TransportError:  # the server was killed
                return
            assert answer.status_code == 200, answer.text
            answered.append(name)
            if on_answer is not None and len(answered) >= after:
                on_answer.set()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(requests)))
    return answered


def steps(address: str) -> dict[str, int]:
    found = httpx.get(f"{address}/streams", timeout=30, trust_env=False).json()
    return {each["name"]: each["num_steps"] for each in found["streams"]}


def test_streams_go_on_after_a_kill_and_an_end(tmp_path: Path) -> None:
    with server(tmp_path) as (process, address):
        before = Counter(asked(address, 64))
        saved = steps(address)
        assert set(saved) == set(STREAMS)
        assert all(0 < saved[name] <= before[name] for name in STREAMS)  # two images of a batch are one step
        time.sleep(1.5)  # saved every half second
        half = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(asked, address, 136, half, 60)
            assert half.wait(60)
            os.kill(process.pid, signal.SIGKILL)
            assert 60 <= len(rest.result(timeout=60)) <= 136
        assert process.wait(30) == -signal.SIGKILL
    for file in tmp_path.glob("*.safetensors"):
        read_state(file)  # whole

    with server(tmp_path) as (process, address):
        restarted = steps(address)
        assert set(restarted) == set(STREAMS)
        assert all(restarted[name] >= saved[name] for name in STREAMS)
        assert not list(tmp_path.glob(".*.safetensors.*"))
        after = Counter(asked(address, 200))
        assert sum(after.values()) == 200
        at_end = steps(address)
        assert all(restarted[name] < at_end[name] <= restarted[name] + after[name] for name in STREAMS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

    with server(tmp_path) as (process, address):
        assert steps(address) == at_end
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    with server(tmp_path):
        words = [sys.executable, "examples/serve.py", "--streams-folder", str(tmp_path), *WORDS]
        second = subprocess.run(words, cwd=ROOT, env=OFFLINE, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode != 0
    assert "used by another server" in " ".join(second.stderr.split())
