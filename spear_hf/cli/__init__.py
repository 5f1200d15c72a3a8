"""The spear-hf command: a thin layer over the functions of the package.

app.py holds the application, refusals.py its errors and exit codes, options.py the run options that the examples share,
and expand.py turns a dataclass into options. The other files hold the commands. A command imports torch and other heavy
libraries when it runs, so that `spear-hf --help` is quick.
"""

from spear_hf.cli.adapt import adapt, evaluate
from spear_hf.cli.app import Options, app, help_of, numbers, script
from spear_hf.cli.calibrate import calibrate
from spear_hf.cli.deploy import export
from spear_hf.cli.expand import about, expanded
from spear_hf.cli.hub import bank, pull, push
from spear_hf.cli.image_options import ImageOptions
from spear_hf.cli.look import boundaries, corrupt, report
from spear_hf.cli.options import ResumableRunOptions, RunOptions, WeightOptions
from spear_hf.cli.side_by_side import ComparisonOptions, compare

__all__ = [
    "ComparisonOptions",
    "ImageOptions",
    "ResumableRunOptions",
    "RunOptions",
    "WeightOptions",
    "about",
    "app",
    "expanded",
    "main",
    "numbers",
    "script",
]

for name, command in {
    "adapt": adapt,
    "eval": evaluate,
    "compare": compare,
    "report": report,
    "boundaries": boundaries,
    "corrupt": corrupt,
    "calibrate": calibrate,
    "bank": bank,
    "push": push,
    "pull": pull,
    "export": export,
}.items():
    app.command(name, cls=Options, help=help_of(command.__doc__))(command)


def main() -> None:
    """Run the command; `spear_hf.cli.app` explains the exit codes.

    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["--help"]).exit_code
    0
    """
    app()
