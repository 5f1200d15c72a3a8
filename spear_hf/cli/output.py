"""What a command prints: JSON for programs, lines and tables for people."""

import json
from typing import Any


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, indent=2))


def print_table(table: Any) -> None:
    """A rich table on stdout."""
    from rich.console import Console

    Console().print(table)
