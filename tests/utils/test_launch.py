import subprocess
import sys
from pathlib import Path

import pytest

from spear_hf.errors import ConfigError, LaunchError
from spear_hf.utils import launch

SCRIPT = (
    "from spear_hf.utils.launch import start_accelerator\n"
    "print('processes', start_accelerator(cpu=True).num_processes)\n"
)


def test_one_process_is_what_was_asked_for() -> None:
    assert launch.requested_processes() == 1


def test_a_lone_process_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "requested_processes", lambda: 2)
    with pytest.raises(LaunchError, match=r"2 processes were asked for and 1 runs.*torchrun --nproc_per_node 2"):
        launch.start_accelerator(cpu=True)


@pytest.mark.slow
def test_accelerate_launch_on_cpus_that_starts_one_process_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", "2"]
    done = subprocess.run([*command, str(tmp_path / "run.py")], capture_output=True, text=True, check=False)
    assert "LaunchError: 2 processes were asked for and 1 runs" in done.stderr
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
