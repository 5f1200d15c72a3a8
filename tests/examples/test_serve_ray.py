"""The Ray service: a real Ray Serve on this machine; skipped where Ray is not installed."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def photo() -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def ask(port: int, stream: str, body: bytes) -> dict[str, object]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, {"serve_multiplexed_model_id": stream})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_streams_are_answered_saved_and_go_on_in_another_service(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for expected in (1, 4):  # three images of each stream by the first service, then one by the second
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        script = ["examples/serve_ray.py", "--streams-folder", str(tmp_path), "--port", str(port), "--seconds", "120"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen([sys.executable, *script], cwd=ROOT, env=environment, stdout=log, stderr=log) as service,
        ):
            try:
                assert first_steps(port, "cam-0") == expected
                if expected == 1:
                    assert [ask(port, "cam-0", photo())["steps"] for _ in range(2)] == [2, 3]
                    with pytest.raises(urllib.error.HTTPError, match="400"):
                        ask(port, "cam-0", b"no image")
            finally:
                service.terminate()


def first_steps(port: int, stream: str) -> object:
    """What the first answered request says, once the service is up."""
    for _ in range(90):
        try:
            return ask(port, stream, photo())["steps"]
        except (OSError, urllib.error.URLError):
            time.sleep(1)
    raise AssertionError("the service did not answer")
