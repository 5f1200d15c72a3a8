"""The command's frame: help, exit codes, and the options of a dataclass."""

import os
import subprocess
import sys

import pytest
import typer

from spear_hf.cli import ImageOptions, app, expanded, script
from spear_hf.config import SpearConfig
from spear_hf.errors import SpearError
from tests.builders import invoked, spear_hf

COMMANDS = [str(info.name) for info in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_json(command: str) -> None:
    text = spear_hf(command, "--help").stdout
    assert f"Example: spear-hf {command} " in text
    assert "--json" in text


def test_the_real_command_shows_its_help_quickly_and_loads_nothing_heavy() -> None:
    """In time of the processor, which a busy machine does not change."""
    heavy = ["torch", "transformers", "timm", "datasets", "numpy", "matplotlib", "huggingface_hub"]
    code = f"import atexit, runpy, sys; atexit.register(lambda: print([m for m in {heavy} if m in sys.modules]));"
    code += "sys.argv[1:] = ['--help']; runpy.run_module('spear_hf.cli', run_name='__main__')"
    before = os.times().children_user
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert os.times().children_user - before < 0.6
    assert done.stdout.endswith("[]\n")
    assert "spear-hf adapt MODEL photos/" in done.stdout


def test_an_error_is_one_line_and_exit_code_2() -> None:
    done = spear_hf("boundaries", "resnett")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("ModelNotFoundError: 'resnett' is no folder")
    assert done.stderr.count("\n") == 1


def test_an_unknown_option_is_exit_code_2() -> None:
    assert spear_hf("boundaries", "resnet18", "--no-such-option").exit_code == 2


def test_a_script_ends_as_the_command_does() -> None:
    def fail() -> None:
        raise SpearError("no\nway")

    done = invoked(script(fail, "Fail."))
    assert (done.exit_code, done.stderr) == (2, "SpearError: no way\n")


def test_a_script_that_is_interrupted_ends_with_130() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert invoked(script(interrupt, "Wait.")).exit_code == 130


def test_an_indented_paragraph_of_the_help_keeps_its_lines() -> None:
    help = invoked(script(lambda: None, "One\nline.\n\n    a --b\n    c --d\n"), "--help").stdout
    lines = [line.strip() for line in help.splitlines()]
    assert {"One line.", "a --b", "c --d"} <= set(lines)


def test_a_dataclass_is_an_option_for_each_field() -> None:
    seen: list[SpearConfig] = []

    @expanded()
    def command(name: str, config: SpearConfig) -> None:
        seen.append(config)

    assert invoked(script(command, ""), "x", "--boundaries", "0,2", "--tau", "0.3").exit_code == 0
    assert seen == [SpearConfig(boundaries=(0, 2), tau=0.3)]


def test_a_command_chooses_defaults_and_leaves_options_out() -> None:
    seen: list[ImageOptions] = []

    @expanded(without=("seed",))
    def command(images: ImageOptions = ImageOptions(limit=7, seed=3)) -> None:  # noqa: B008
        seen.append(images)

    assert invoked(script(command, ""), "--batch-size", "2").exit_code == 0
    assert seen == [ImageOptions(limit=7, seed=3, batch_size=2)]
    assert invoked(script(command, ""), "--seed", "1").exit_code == 2


def test_sizes_are_numbers_with_commas() -> None:
    from spear_hf.cli import numbers

    assert numbers("4, 16") == [4, 16]
    with pytest.raises(typer.BadParameter, match=r"'4,x' is not allowed; give whole numbers with commas"):
        numbers("4,x")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_whole_flags_at_80_columns(command: str) -> None:
    from typer.testing import CliRunner

    text = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, "--help"]).stdout
    options = typer.main.get_command(app).commands[command].params  # pyright: ignore[reportAttributeAccessIssue]
    assert all(flag in text for option in options for flag in option.opts if flag.startswith("--"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_version_is_shown() -> None:
    import spear_hf as package

    assert spear_hf("--version").stdout == f"spear-hf {package.__version__}\n"
