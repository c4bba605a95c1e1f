"""Output: tables, texts and progress for people, JSON and YAML for programs; and what is read besides options.

Colours depend on the terminal, NO_COLOR and FORCE_COLOR. If the output is not a terminal, lines are not wrapped at 80
columns.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.base.versions import VERSIONS, minor_of
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import NAMESPACES, named
from dra_driver.tools.world.access import OutputDocument
from dra_driver.tools.world.profiles import FEW_TITLES, NUMBERS, TITLES, device_rows, placement_lines

PIPE_WIDTH = 500
# The controls of terminals (C0, C1), those that change the direction or the lines of text, and halves of pairs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text without control characters, so that no object that is shown can give orders to the terminal.

    >>> printable("name\x1b[2J").encode("ascii", "replace").decode()
    'name?[2J'
    """
    return _CONTROL.sub("\ufffd", text)


def _escaped(text: str) -> str:
    """Return JSON or YAML whose control characters are escaped; those of YAML must be in double quotes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def console(*, stderr: bool = False, is_quiet: bool = False) -> Any:
    """Return a rich console for this terminal or pipe; with `is_quiet` it writes nothing."""
    from rich.console import Console
    from rich.segment import Segment

    class PipeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Any]:
            """Yield what rich draws; only its own segments may control the terminal."""
            for one in super().render(renderable, options):
                yield one if one.control or not _CONTROL.search(one.text) else Segment(printable(one.text), one.style)

        def on_broken_pipe(self) -> NoReturn:
            """Raise the error, so that `main` handles it; rich itself would exit with status 1."""
            raise BrokenPipeError

    is_watched = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_watched or "COLUMNS" in os.environ else PIPE_WIDTH
    return PipeConsole(stderr=stderr, highlight=False, width=width, quiet=is_quiet)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Text is wrapped where a table is too wide; numbers are not."""

    title: str
    is_number: bool = False


def show_table(out: Any, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Show a table with all its columns; if the terminal is too narrow, text continues on the next line."""
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
    """Print what rich draws, without the blanks at the ends of its lines. Raises: BrokenPipeError."""
    with out.capture() as captured:
        out.print(drawn)
    try:
        for line in captured.get().splitlines():
            print(line.rstrip(), file=out.file)
        out.file.flush()
    except BrokenPipeError:
        raise BrokenPipeError from None  # without an errno, with which click itself would exit with status 1


def print_text(out: Any, text: str, *, indent: int = 0, style: str = "", bold: str = "") -> None:
    """Print a text, wrapped and indented; `bold` is printed in bold in front of it."""
    from rich.text import Text

    for line in Text.assemble((bold, "bold"), text, style=style).wrap(
        out, max(20, out.width - indent), overflow="fold"
    ):
        line.rstrip()
        out.print(Text(" " * indent).append_text(line), soft_wrap=True)


# An expression up to the blank after && or ||, unless these are inside a literal.
_OPERAND = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^ "']|(?<!&&)(?<!\|\|) )+""")


def print_code(out: Any, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print an expression so that it can be copied: a line is broken only after && and ||, never inside a literal.

    An expression of several lines keeps them, each indented.
    """
    from rich.text import Text

    for written in text.splitlines():
        for line in _lines_of_code(written, out.width - indent):
            out.print(Text(f"{' ' * indent}{line}", style=style), soft_wrap=True)


def _lines_of_code(text: str, width: int) -> list[str]:
    parts, lines = _OPERAND.findall(text), [""]
    for part in parts if " ".join(parts) == text else [text]:
        joined = f"{lines[-1]} {part}" if lines[-1] else part
        if lines[-1] and len(joined) > width:
            lines.append(part)
        else:
            lines[-1] = joined
    return lines


def write_document(document: OutputDocument, form: str) -> None:
    """Write a document as "json" or "yaml" to standard output."""
    if form == "json":
        click.echo(_escaped(json.dumps(document.wire(), indent=2, ensure_ascii=False)))
    else:
        click.echo(yaml_text(document.wire()), nl=False)


def yaml_text(content: Wire) -> str:
    """Return an object as YAML without anchors."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:
            """Write equal parts out each time, so that the reader does not have to follow anchors."""
            return True

        def represent_str(self, data: str) -> Any:
            """Quote a text with control characters, because only in quotes they can be escaped."""
            return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if _CONTROL.search(data) else None)

    Dumper.add_representer(str, Dumper.represent_str)
    return _escaped(str(yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)))


# `dra-driver pod-security`: let a namespace admit the agent's privileged pods, by its Pod Security label.

LABEL = "pod-security.kubernetes.io/enforce"
LEVEL = "privileged"


@click.command(name="pod-security")
@click.option("--namespace", required=True, metavar="NAME", help="the namespace in which the agents are to run")
@click.option("--kubeconfig", metavar="FILE", default=None, help="the cluster (default: the pod's ServiceAccount)")
def pod_security_command(namespace: str, kubeconfig: str | None) -> int:
    """Set the namespace's Pod Security level to privileged if it has none.

    Exit status 1: the namespace has a stricter level; 5: the API server was not reached.
    """
    from dra_driver.kube.credentials import load_credentials

    level, is_new = ensure(KubeApi(load_credentials(kubeconfig)), namespace)
    if level == LEVEL:
        click.echo(f"Namespace {namespace} {'now admits' if is_new else 'admits'} privileged pods.")
        return ExitCode.OK
    click.echo(f"Namespace {namespace} enforces the Pod Security level {level!r}: the agents can't run there.")
    click.echo(f"Run: kubectl label --overwrite namespace {namespace} {LABEL}={LEVEL}")
    return ExitCode.NO_MATCH


def ensure(api: KubeApi, namespace: str) -> tuple[str, bool]:
    """Set the level if there is none; return the level, and whether it is new. Raises: ApiError."""
    path = named(NAMESPACES, namespace)
    found = (api.request("GET", path)["metadata"].get("labels") or {}).get(LABEL)
    if found:
        return str(found), False
    body = {"metadata": {"labels": {LABEL: LEVEL}}}
    api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    return LEVEL, True


# The table of published devices, as `devices` and the demo show it.


def show_devices(out: Any, title: str, devices: Sequence[DeviceWire], *, is_wide: bool = False) -> None:
    """Show devices as a table; without `is_wide`, the placements of a GPU are counted, and listed below the table."""
    columns = [Column(name, is_number=name in NUMBERS) for name in (TITLES if is_wide else TITLES[:FEW_TITLES])]
    show_table(out, title, columns, device_rows(devices, is_wide=is_wide))
    for line in () if is_wide else placement_lines(devices):
        print_text(out, line)


# The progress of a long command, as a line on standard error.

_FIRST_SECONDS, _SECONDS = 0.5, 0.2
_CLEAR = "\r\x1b[K"


class TerminalProgress:
    """The progress line of one long task."""

    def __init__(self, noun: str, total: int = 0) -> None:
        self._noun = noun
        self._total = total
        self._is_seen = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._is_drawn = False

    def update(self, done: int) -> None:
        """Draw how many items are done, unless that was drawn a moment ago."""
        if not self._is_seen or (now := time.monotonic()) < self._next:
            return
        self._next = now + _SECONDS
        self._is_drawn = True
        of = f" of {self._total:,}" if self._total else ""
        print(f"{_CLEAR}{done:,}{of} {self._noun}, {done / (now - self._began):,.0f}/s", end="", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            print(_CLEAR, end="", file=sys.stderr)
            sys.stderr.flush()


# Whether something is piped into a command that was called without a file.

SILENT_SECONDS = 5.0


def stdin_has_something() -> bool:
    """Return whether something is piped into this process; a pipe that stays silent for five seconds does not count."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    if select.select([number], [], [], SILENT_SECONDS)[0]:
        return True
    text = f"dra-driver: nothing came on standard input for {SILENT_SECONDS:.0f} s; use - to wait for it"
    print(text, file=sys.stderr)
    return False


# The address on which a server of a command listens.


def read_address(text: str, example: str) -> tuple[str, int]:
    """Read HOST:PORT; the host is "" for all addresses. Raises: UsageError("usage.address"), which shows `example`."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"--address={text!r} is not HOST:PORT", hint=f"for example {example}")
    return host.strip("[]"), int(port)


# What is read: versions of Kubernetes.


class KubernetesVersion(click.Choice):  # type: ignore[type-arg]
    """A minor version of Kubernetes, or a patch version, whose rules are those of its minor."""

    def __init__(self) -> None:
        super().__init__(VERSIONS)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the minor version, such as "1.35" for "v1.35.8". Raises: click.BadParameter."""
        minor = minor_of(value)
        version: str = super().convert(f"1.{minor}" if minor else value, param, ctx)
        return version
