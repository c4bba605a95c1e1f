"""`dra-driver cel repl` and `cel lsp`: write expressions with completion and types from the given devices.

In: devices, then lines. Out: for a bool expression the devices that match; for any other, its values. On a terminal,
lines are edited with completion and the type is shown below while the user types; from a pipe, lines are simply read.
For lsp, in and out are the messages of an editor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.base.versions import minor_of
from dra_driver.selectors.advice.completion import Completions
from dra_driver.selectors.advice.mistakes import KnownNames
from dra_driver.selectors.advice.remedies import remedy
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.folds import Fragment, compile_fragment
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.reads import read_set, suggest, unknown_names
from dra_driver.tools.cel.match import error_lines, print_heading, print_remedy
from dra_driver.tools.cel.verdicts import views_of
from dra_driver.tools.options import input_options, read_inputs
from dra_driver.tools.output import console, print_text
from dra_driver.tools.world.documents import STDIN
from dra_driver.tools.world.fields import plural
from dra_driver.tools.world.fleet import shipped_fleet
from dra_driver.tools.world.queries import SelectorInputs

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings

_HELP = """\
Type an expression: a condition shows which devices match, anything else its values.
  :devices         the given devices
  :names           domains, attributes and capacities with their values
  :help            this text
  :quit            leave (or Ctrl-D)"""
_MAX_VALUES = 8
_MAX_NAMED = 3


@click.command(name="repl")
@input_options
def cel_repl_command(**options: Any) -> int:
    """Try expressions interactively.

    Tab completes domains, attributes and functions, from the given devices; the type of the expression is shown below
    the line. Without a terminal, expressions are read from standard input, one on each line.

    \b
      dra-driver cel repl --fleet dgx-h100
      echo 'device.attributes["gpu.nvidia.com"].productName' | dra-driver cel repl --fleet l40s

    \b
    Exit status: 0; if there are no devices, 2 or 5 as for cel test.
    """  # noqa: D301
    given = read_inputs(options, needs_selectors=False)
    session = ReplSession(given)
    print_heading(session.out, given)
    lines = _typed(session) if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
    for written in given.queries[0].selectors if given.queries else ():
        session.answer(written.expression)
    for line in lines:
        if line.strip() in {":quit", ":q", ":exit"}:
            break
        session.answer(line)
    return ExitCode.OK


class ReplSession:
    """An interactive session that answers one line at a time."""

    def __init__(self, given: SelectorInputs) -> None:
        self.out = console()
        self.given = given
        self.declarations = declare(given.kubernetes, given.gates, given.environment)
        self.views: list[DeviceView] = views_of(given.fleet)
        self.completions = Completions(self.views, self.declarations)
        self.names = KnownNames.of(self.views)

    def answer(self, line: str) -> None:
        """Answer one line."""
        text = line.strip()
        if not text:
            return
        if text.startswith(":"):
            self._order(text)
            return
        try:
            fragment = compile_fragment(text, self.declarations)
        except SelectorCompileError as error:
            for row in error_lines(error.text, self.out.width):
                self.out.print(row, markup=False, emoji=False, soft_wrap=True, style="red")
            found = remedy(text, self.declarations, self.names, self._compiles)
            print_remedy(self.out, found)
            for unknown in suggest(error, self.declarations) if found is None else ():
                print_text(self.out, unknown.sentence, style="yellow")
            return
        self._values(fragment)

    def _compiles(self, text: str) -> bool:
        try:
            compile_fragment(text, self.declarations)
        except SelectorCompileError:
            return False
        return True

    def type_of(self, text: str) -> str:
        """Return the type of an unfinished line, or its error."""
        if not text.strip() or text.startswith(":"):
            return f"{len(self.views)} devices  ·  Tab completes  ·  :help"
        try:
            return f"type: {compile_fragment(text.strip(), self.declarations).type}"
        except SelectorCompileError as error:
            return error.text.splitlines()[0].removeprefix("compilation failed: ERROR: <input>:")

    def _values(self, fragment: Fragment) -> None:
        found: dict[tuple[str, str], list[int]] = {}
        for position, view in enumerate(self.views):
            try:
                value, kind = fragment.value(view)
            except SelectorRuntimeError as error:
                value, kind = f"error: {error.text}", "aborts scheduling"
            found.setdefault((value, kind), []).append(position)
        print_text(self.out, f"type: {fragment.type}", style="dim")
        ranked = sorted(found.items(), key=lambda item: -len(item[1]))
        styles = {"true": "green", "false": "red"}
        for (value, kind), positions in ranked[:_MAX_VALUES]:
            style = "magenta" if kind == "aborts scheduling" else styles.get(value, "")
            named = ", ".join(self.given.fleet.devices[position].name for position in positions[:_MAX_NAMED])
            rest = ", …" if len(positions) > _MAX_NAMED else ""
            print_text(self.out, f"{value}  ({kind}) on {plural(len(positions), 'device')}: {named}{rest}", style=style)
        if len(ranked) > _MAX_VALUES:
            print_text(self.out, f"and {len(ranked) - _MAX_VALUES} other values", style="dim")
        for unknown in unknown_names(read_set(fragment.root), self.views):
            print_text(self.out, unknown.sentence, style="yellow")

    def _order(self, text: str) -> None:
        if text == ":devices":
            for device in self.given.fleet.devices:
                print_text(self.out, f"{device.node}/{device.name}  {device.driver}")
        elif text == ":names":
            for field in ("attributes", "capacity"):
                for domain in self.completions.complete(f'device.{field}["'):
                    name = domain.text.removesuffix('"]')
                    print_text(self.out, f"{field} {name}", style="bold")
                    for one in self.completions.complete(f'device.{field}["{name}"].'):
                        print_text(self.out, f"{one.text}  {one.meaning}", indent=2)
        else:
            print_text(self.out, _HELP)


def _typed(session: ReplSession) -> Iterator[str]:
    """Read lines from the terminal, edited with completion."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.history import InMemoryHistory

    prompt: PromptSession[str] = PromptSession(
        "cel> ",
        key_bindings=_bindings(session),
        completer=_completer(session),
        bottom_toolbar=lambda: session.type_of(get_app().current_buffer.text),
        history=InMemoryHistory(),
        complete_while_typing=True,
    )
    while True:
        try:
            yield prompt.prompt()
        except KeyboardInterrupt:
            continue  # Ctrl-C drops the line, as in a shell
        except EOFError:
            return


def _completer(session: ReplSession) -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class FromDevices(Completer):
        """Complete names from the given devices."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Completion]:  # noqa: ARG002
            for one in session.completions.complete(document.text_before_cursor):
                yield Completion(one.text, -one.replaces, display=one.text, display_meta=one.meaning)

    return FromDevices()


def _bindings(session: ReplSession) -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("tab")
    def insert_or_offer(event: Any) -> None:
        """Insert the candidate if there is only one; otherwise show them all."""
        buffer = event.current_buffer
        found = session.completions.complete(buffer.document.text_before_cursor)
        if len(found) == 1:
            buffer.delete_before_cursor(found[0].replaces)
            buffer.insert_text(found[0].text)
        elif buffer.complete_state:
            buffer.complete_next()
        else:
            buffer.start_completion(select_first=True)

    return bindings


# `dra-driver cel lsp`: the same in an editor.


@click.command(name="lsp")
@input_options
def cel_lsp_command(**options: Any) -> int:
    """Serve an editor over standard input and output: a language server for selectors in YAML and JSON.

    It marks what `cel lint` finds while you type, with fixes; completes domains, attributes and functions; and shows
    type, cost and matches of what the cursor is on. Devices are those of --fleet, of files or of a cluster; without
    any, those of every shipped profile. FILE may have further classes. docs/selectors.md shows how editors start it.

    \b
      dra-driver cel lsp --fleet dgx-h100 -f deviceclasses/

    \b
    Exit status:
      0  the editor ended it            3  a file is wrong
      2  the command line is wrong      5  the cluster does not answer
    """  # noqa: D301
    from dra_driver.tools.cel.editing import SelectorEditor

    try:
        from dra_driver.tools.cel.lsp import serve
    except ModuleNotFoundError as fault:
        text = f"the language server needs the package {fault.name}, which is not installed"
        raise UsageError(
            "no-extra", text, hint="install dra-driver with its extra: pip install 'dra-driver[lsp]'"
        ) from fault
    if STDIN in (*options["files"], *options["more_files"]):
        raise UsageError("stdin", "- is the editor's: name a file")
    given = read_inputs(options, needs_devices=False, needs_selectors=False)
    if not given.fleet.sources:
        given = replace(given, fleet=shipped_fleet(minor_of(given.kubernetes)))
    serve(SelectorEditor(given))
    return ExitCode.OK
