"""Output: tables for people, JSON and YAML for programs; plain text when it does not go to a terminal.

Colour follows the terminal, NO_COLOR and FORCE_COLOR. Away from a terminal, lines are not folded at 80 columns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from dra_driver.views.envelope import OutputDocument

PIPE_WIDTH = 500


def console(*, stderr: bool = False) -> Any:
    """Return a rich console for this terminal or pipe."""
    from rich.console import Console

    class Stream(Console):
        def on_broken_pipe(self) -> NoReturn:
            """Raise the error, so that `main` handles a reader that went away; rich would exit with status 1."""
            raise BrokenPipeError

    is_watched = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_watched or "COLUMNS" in os.environ else PIPE_WIDTH
    return Stream(stderr=stderr, highlight=False, width=width)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. If a table is too wide, columns with the highest `rank` are left out first; rank 0 always stays."""

    title: str
    rank: int = 0
    is_number: bool = False


def show_table(out: Any, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Show as many columns as fit the terminal without folding, and print which were left out."""
    from rich.box import SIMPLE_HEAD
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(cell) for cell in row] for row in rows]
    shown = list(columns)
    while True:
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        kept = [columns.index(column) for column in shown]
        for column in shown:
            table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=True)
        for row in cells:
            table.add_row(*(row[i] for i in kept))
        least = max(shown, key=lambda column: column.rank)
        if least.rank == 0 or Measurement.get(out, out.options.update(width=PIPE_WIDTH), table).maximum <= out.width:
            break
        shown.remove(least)
    out.print(table)
    if left := [column.title for column in columns if column not in shown]:
        out.print(f"(a wider terminal also shows: {', '.join(left)})", style="dim")


def say(out: Any, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a text whose continuation lines are indented like its first."""
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding.indent(Text(text, style=style, overflow="fold"), indent))


def write_document(document: OutputDocument, form: str) -> None:
    """Write a document as "json" or "yaml" to standard output."""
    if form == "json":
        click.echo(json.dumps(document.wire(), indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(document.wire(), sort_keys=False, allow_unicode=True), nl=False)
