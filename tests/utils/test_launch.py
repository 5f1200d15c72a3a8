import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spear_hf.errors import ConfigError, LaunchError
from spear_hf.utils import launch
from tests.conftest import OFFLINE

CPU_LAUNCH = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True"}  # what accelerate 1.15 exports


@pytest.fixture(autouse=True)
def outside_of_any_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "3", "MASTER_PORT": "29500"}, 3),  # torchrun
        ({"WORLD_SIZE": "1", "MASTER_PORT": "29500"} | CPU_LAUNCH, 1),  # accelerate launch --multi_gpu, one process
        (CPU_LAUNCH, 1),  # accelerate launch --cpu
        (CPU_LAUNCH | {"MASTER_PORT": "29500"}, 2),  # accelerate launch --cpu --num_processes 2
        ({"MASTER_PORT": "29500"}, 1),  # a port, but no launcher
    ],
)
def test_the_environment_says_how_many_processes_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch.requested_processes() == count


def test_a_lone_process_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "requested_processes", lambda: 2)
    with pytest.raises(LaunchError, match=r"several processes were asked for and 1 runs.*torchrun --nproc_per_node 2"):
        launch.start_accelerator(cpu=True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--cpu", "--num_processes", "2"), ("--config_file", "accelerate.yaml")])
def test_accelerate_launch_on_cpus_that_starts_one_process_is_noticed(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "run.py").write_text("from spear_hf.utils.launch import start_accelerator as s; s(cpu=True)\n")
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nnum_machines: 1\n"
        "machine_rank: 0\nuse_cpu: true\nmixed_precision: 'no'\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *words, "run.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=OFFLINE)
    assert "LaunchError: several processes were asked for and 1 runs" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("tensorbord", "log_with='tensorbord' is not known; allowed are aim, "),
        ("tensorboard, dvclive", "log_with='dvclive' needs its package; pip install dvclive"),
    ],
)
def test_a_tracker_that_would_be_left_out_is_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch.start_accelerator(cpu=True, log_with=names)


def test_trackers_that_write_files_do_so_in_the_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = launch.start_accelerator(cpu=True, log_with="tensorboard", folder=tmp_path)
    accelerator.log({"error/source": 25.0}, step=3)
    launch.end_trackers(accelerator)
    events = EventAccumulator(str(tmp_path / "spear_hf")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("error/source")] == [(3, 25.0)]


@pytest.mark.slow
def test_a_run_of_trackio_stays_here_and_has_the_name_of_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed; pip install trackio")
    code = (
        "from spear_hf.utils.launch import end_trackers, start_accelerator\n"
        "accelerator = start_accelerator(cpu=True, log_with='trackio', folder='runs/fog')\n"
        "accelerator.log({'error/source': 25.0}, step=3)\n"
        "end_trackers(accelerator)\n"
    )
    where = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=OFFLINE | where, check=True, capture_output=True)
    with sqlite3.connect(tmp_path / "trackio" / "spear_hf.db") as kept:
        assert kept.execute("SELECT run_name, step, metrics FROM metrics").fetchall() == [
            ("fog", 3, b'{"error/source":25.0}')
        ]
