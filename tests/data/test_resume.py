"""A stream whose process is killed continues with the same bits."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import batch_digest, picture_rows, shuffled_stream

OPTIONS: dict[str, Any] = {
    "corruptions": "noise, elastic_transform",
    "batch_size": 5,
    "protocol": "continual",
    "seed": 3,
}


RUN = """
import json, os, signal, sys
from pathlib import Path
from tests.builders import batch_digest, shuffled_stream

folder, kill_at, workers, options = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
stream = shuffled_stream(folder / "images.parquet", num_workers=workers, **options)
if (folder / "state.json").exists():
    stream.load_state_dict(json.loads((folder / "state.json").read_text()))
for batch in stream:
    with open(folder / "seen.jsonl", "a") as file:
        print(json.dumps([batch["batch"], batch_digest(batch)]), file=file)
    if batch["batch"] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "state.tmp").write_text(json.dumps(stream.state_dict()))
    os.replace(folder / "state.tmp", folder / "state.json")
"""


@pytest.mark.slow
def test_a_stream_killed_twice_yields_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    picture_rows(23).to_parquet(tmp_path / "images.parquet")
    for kill_at, workers, code in ((4, 2, -signal.SIGKILL), (11, 0, -signal.SIGKILL), (-1, 3, 0)):
        command = [sys.executable, "-c", RUN, str(tmp_path), str(kill_at), str(workers), json.dumps(OPTIONS)]
        assert subprocess.run(command, check=False).returncode == code
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    unbroken = {
        batch["batch"]: batch_digest(batch) for batch in shuffled_stream(tmp_path / "images.parquet", **OPTIONS)
    }
    assert dict(seen) == unbroken
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4, *range(4, 12), *range(11, 20)]  # the interrupted, again
