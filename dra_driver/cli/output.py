"""Output: tables for people, JSON and YAML for machines; plain when nobody looks.

Colour follows the terminal, NO_COLOR and FORCE_COLOR. Away from a terminal lines are not folded at 80 columns.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

PIPE_WIDTH = 500


def console(*, stderr: bool = False) -> Any:
    """Give a rich console for this terminal, or for a pipe."""
    from rich.console import Console

    is_watched = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_watched or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, width=width)


def write_document(document: Any, form: str) -> None:
    """Write a document as "json" or "yaml" to standard output."""
    if form == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
