"""Output: tables for people, JSON and YAML for programs; plain text when it does not go to a terminal.

Colour follows the terminal, NO_COLOR and FORCE_COLOR. Away from a terminal, lines are not folded at 80 columns.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from dra_driver.model.wire import Wire
from dra_driver.views.envelope import OutputDocument

PIPE_WIDTH = 500


def console(*, stderr: bool = False, is_quiet: bool = False) -> Any:
    """Return a rich console for this terminal or pipe; one that `is_quiet` writes nothing."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> NoReturn:
            """Raise the error, so that `main` handles a reader that went away; rich would exit with status 1."""
            raise BrokenPipeError

    is_watched = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_watched or "COLUMNS" in os.environ else PIPE_WIDTH
    return PipeConsole(stderr=stderr, highlight=False, width=width, quiet=is_quiet)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Text folds where a table is too wide; numbers and the first column's names stay whole."""

    title: str
    is_number: bool = False


def show_table(out: Any, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Show all columns; if the terminal is too narrow, text continues on the next line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.is_number else "left", no_wrap=column.is_number, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    print_trimmed(out, table)


def print_trimmed(out: Any, drawn: Any) -> None:
    """Print what rich draws without the blanks that it fills lines up with. Raises: BrokenPipeError."""
    with out.capture() as captured:
        out.print(drawn)
    try:
        for line in captured.get().splitlines():
            print(line.rstrip(), file=out.file)
        out.file.flush()
    except BrokenPipeError:
        raise BrokenPipeError from None  # raised without a number, because click ends with status 1 if there is one


def say(out: Any, text: str, *, indent: int = 0, style: str = "", bold: str = "") -> None:
    """Print a text whose continuation lines are indented like its first; it begins with what is `bold`."""
    from rich.text import Text

    for line in Text.assemble((bold, "bold"), text, style=style).wrap(
        out, max(20, out.width - indent), overflow="fold"
    ):
        line.rstrip()
        out.print(Text(" " * indent).append_text(line), soft_wrap=True)


# An expression up to the blank behind && or ||; those within literals do not count.
_OPERAND = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^ "']|(?<!&&)(?<!\|\|) )+""")


def say_code(out: Any, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print an expression to be copied: lines end only after && and ||, never inside a literal."""
    from rich.text import Text

    parts, lines = _OPERAND.findall(text), [""]
    for part in parts if " ".join(parts) == text else [text]:
        joined = f"{lines[-1]} {part}".lstrip()
        if lines[-1] and len(joined) > out.width - indent:
            lines.append(part)
        else:
            lines[-1] = joined
    for line in lines:
        out.print(Text(f"{' ' * indent}{line}", style=style), soft_wrap=True)


def write_document(document: OutputDocument, form: str) -> None:
    """Write a document as "json" or "yaml" to standard output."""
    if form == "json":
        click.echo(json.dumps(document.wire(), indent=2, ensure_ascii=False))
    else:
        click.echo(yaml_text(document.wire()), nl=False)


def yaml_text(content: Wire) -> str:
    """Return an object as YAML, every part written out."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:
            """Write equal parts out each time, so that the reader does not have to follow anchors."""
            return True

    return str(yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True))
