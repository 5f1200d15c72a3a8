"""The spear-hf command: a thin layer over the functions of the package, a file for each command.

A command's module imports what is heavy when the command runs, so that `spear-hf --help` stays quick.
"""

from spear_hf.cli import adapt, bank, boundaries, compare, corrupt, eval, pull, push, report
from spear_hf.cli.app import app

app.command()(adapt.adapt)
app.command("eval")(eval.evaluate)
for command in (
    compare.compare,
    boundaries.boundaries,
    corrupt.corrupt,
    push.push,
    pull.pull,
    bank.bank,
    report.report,
):
    app.command()(command)


def main() -> None:
    """The console script; `spear_hf.cli.app` says what the exit codes mean."""
    app()
