"""`dra-driver cel lint`: find selectors that compile but cause trouble, and show how to write them better.

In: selectors, and devices if there are any. Out: findings; with --fix, better expressions written into the files.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import click

from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.base.versions import minor_of
from dra_driver.base.wire import Wire
from dra_driver.selectors.advice.findings import RULES, LintSeverity
from dra_driver.selectors.advice.lint import Autoscaler
from dra_driver.selectors.kubernetes import BatchChecker, has_defaults
from dra_driver.tools.cel.linting import (
    ExpressionChange,
    LintedSelector,
    ReportedFault,
    SelectorPlace,
    findings_document,
    github_line,
    lint_queries,
    lint_rewritten,
    reported_faults,
    sarif_document,
    with_new_expressions,
)
from dra_driver.tools.cel.match import place_of, print_heading, print_problems
from dra_driver.tools.cel.verdicts import QueryVerdicts, judge
from dra_driver.tools.options import input_options, read_inputs
from dra_driver.tools.output import console, print_code, print_text, printable, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument, batch_fault
from dra_driver.tools.world.documents import STDIN, read_text, shown
from dra_driver.tools.world.fields import plural
from dra_driver.tools.world.fleet import shipped_fleet
from dra_driver.tools.world.queries import SelectorInputs
from dra_driver.tools.world.shapes import refuse_unknown_in_device

_STYLES = {LintSeverity.ERROR: "bold red", LintSeverity.WARNING: "yellow", LintSeverity.NOTE: "cyan"}


@click.command(name="lint", epilog="Rules: " + ", ".join(RULES) + ". Each is described in docs/selectors.md.")
@input_options
@click.option(
    "--disable", "disabled", multiple=True, type=click.Choice(list(RULES)), metavar="ID", help="disable a rule"
)
@click.option(
    "--autoscaler",
    type=click.Choice([one.value for one in Autoscaler]),
    help="also find what this autoscaler can't know of a node that it has not started yet",
)
@click.option("--fix", is_flag=True, help="write safe fixes into the files; for -e, print the better expression")
@click.option(
    "--fail-on",
    type=click.Choice([*map(str, LintSeverity), "never"]),
    default="note",
    show_default=True,
    help="exit with 1 for findings of this severity or a worse one",
)
@click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json", "yaml", "github", "sarif"]),
    default="table",
    show_default=True,
)
def cel_lint_command(
    disabled: tuple[str, ...], autoscaler: str | None, fail_on: str, output: str, *, fix: bool, **options: Any
) -> int:
    """Find selectors that compile but cause trouble.

    Every selector is evaluated on the given devices (ResourceSlices, --fleet, a cluster); without any, on every shipped
    profile and kind of device. A fix is safe if no verdict on any of them changes.

    \b
      dra-driver cel lint deviceclasses/ --fleet dgx-h100
      dra-driver cel lint --fix claim.yaml --fleet mixed
      dra-driver cel lint --autoscaler karpenter-aws claim.yaml

    A finding is an error (it aborts scheduling, is refused, or can't be true), a warning, or a note. -o github writes
    annotations for a workflow of GitHub, -o sarif a log for programs that collect findings.

    \b
    Exit status:
      0  nothing found, or everything fixed       3  an expression does not compile, a file is wrong
      1  findings (--fail-on)                     5  the cluster does not answer
      2  the command line is wrong
    """  # noqa: D301
    given = read_inputs(options, needs_devices=False, refuses_configs=True)
    if not given.fleet.sources:
        given = replace(given, fleet=shipped_fleet(minor_of(given.kubernetes)))
    judged = judge(given.queries, given.fleet, given.engine(), given.environment)
    scaler = Autoscaler(autoscaler) if autoscaler else None
    found = list(lint_queries(judged, given, frozenset(disabled), scaler))
    broken = [one for query in judged for one in query.compiled if one.error is not None]
    fixed = _write(found) if fix else frozenset()
    if fix:
        found = [lint_rewritten(one, fixed, frozenset(disabled), scaler) for one in found]
    if output == "table":
        _show(judged, found, given, fixed, fix=fix)
    elif output in {"github", "sarif"}:
        _report(reported_faults(judged, found, given), output)
    else:
        write_document(findings_document(judged, found, given, fixed), output)
    if broken:
        return ExitCode.BAD_INPUT
    severities = list(LintSeverity)
    fatal = severities[: severities.index(LintSeverity(fail_on)) + 1] if fail_on != "never" else []
    fails = any(finding.severity in fatal for one in found for finding in one.findings)
    return ExitCode.NO_MATCH if fails else ExitCode.OK


def _report(faults: Sequence[ReportedFault], form: str) -> None:
    """Write the faults for a program that shows them beside the lines of the files."""
    if form == "sarif":
        click.echo(json.dumps(sarif_document(faults), indent=2))
    for fault in faults if form == "github" else ():
        click.echo(printable(github_line(fault)))


def _write(found: list[LintedSelector]) -> frozenset[SelectorPlace]:
    """Write better expressions into their files and return those that were written."""
    by_file: dict[str, list[LintedSelector]] = {}
    written: set[SelectorPlace] = set()
    for one in found:
        document = one.compiled.written.document
        if one.better is not None and document is not None and document.origin != STDIN:
            by_file.setdefault(document.origin, []).append(one)
    for origin, rows in by_file.items():
        changes = [
            ExpressionChange(row.compiled.written.document.number, row.compiled.written.steps, row.better)
            for row in rows
            if row.compiled.written.document is not None and row.better is not None
        ]
        text = with_new_expressions(read_text(origin), origin, changes)
        if text is None:
            continue  # the findings stay, and show the better expression, which the user can write by hand
        try:
            Path(origin).write_text(text, encoding="utf-8")
        except OSError as fault:
            raise InputError("unwritable", f"{shown(origin)} can't be written: {fault.strerror}") from fault
        written |= {row.place for row in rows}
    return frozenset(written)


def _show(
    judged: list[QueryVerdicts],
    found: list[LintedSelector],
    given: SelectorInputs,
    fixed: frozenset[SelectorPlace],
    *,
    fix: bool,
) -> None:
    out = console()
    print_heading(out, given)
    if not given.fleet.devices:
        print_text(out, "there are no devices: only the expressions are checked", style="dim")
    for query in judged:
        if not query.compiles:
            out.print()
            print_text(out, query.query.title, style="bold")
            print_problems(out, query, given)
    for one in found:
        _show_linted(out, one, given, fixed, fix=fix)
    count = sum(len(one.findings) for one in found)
    out.print()
    print_text(
        out, f"{plural(count, 'finding')} in {plural(len(found), 'selector')}", style="bold" if count else "green"
    )


def _show_linted(
    out: Any, one: LintedSelector, given: SelectorInputs, fixed: frozenset[SelectorPlace], *, fix: bool
) -> None:
    written = one.compiled.written
    if not one.findings and one.place not in fixed:
        return
    out.print()
    print_text(
        out, f"{place_of(written, given)}{written.label}" if written.document else written.expression, style="bold"
    )
    for finding in one.findings:
        text = f"{place_of(written, given, finding.start)}{finding.severity}: {finding.message} [{finding.rule}]"
        print_text(out, text, indent=2, style=_STYLES[finding.severity])
        if finding.clause and finding.clause != written.expression:
            print_text(out, f"in: {finding.clause}", indent=4, style="dim")
        if finding.fix and not finding.is_safe:
            print_code(out, f"perhaps: {finding.fix}", indent=4)
        if finding.effect:
            print_text(out, f"but {finding.effect}", indent=4)
    if one.place in fixed:
        print_text(out, "fixed:", indent=2, style="green")
    elif one.better is not None:
        print_text(out, "better:" if fix else "better (--fix writes it):", indent=2, style="green")
    if one.better is not None:
        print_code(out, one.better, indent=4)


# `dra-driver cel batch`: evaluate many expressions for another program.

_MAX_LINE = 256 << 20  # in bytes


@click.command(name="batch")
@click.argument("path", metavar="FILE")
def cel_batch_command(path: str) -> int:
    """Evaluate many expressions for another program: each line of FILE (- is standard input) is a JSON object.

    The output has a line for each, in the same order.

    \b
    echo '{"id": 1, "expression": "device.driver == 2"}' | dra-driver cel batch -

    \b
    A line:    {"id", "expression", "driver", "devices": [resource.k8s.io/v1 Device...],
                "kubernetes": "1.35", "gates": {"NAME": bool}, "environment": "stored"|"new"}
    Defaults:  a first line without "expression" sets them for all others
    Answer:    {"apiVersion", "kind": "SelectorVerdict", "id", "compileError": null|text, "errorKind", "type",
                "maxCost", "admissible", "results": [{"match": bool} | {"error": text}]}
    A line that can't be read: {"apiVersion", "kind": "BatchFault", "id", "line", "error"}

    \b
    Exit status:
      0  every line was answered       3  the file or some of its lines could not be read
      2  the command line is wrong
    """  # noqa: D301
    return answer_file(path)


def answer_file(path: str) -> int:
    """Answer every line of a file, "-" for standard input, and return the exit status. Raises: InputError."""
    with _opened(path) as file:
        return _answer(file)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115  (closed below; only a failure to open is an input error)
    except OSError as fault:
        raise InputError("unreadable", f"{shown(path)} can't be read: {fault.strerror}") from fault
    with file:
        yield file


def _answer(file: IO[bytes]) -> int:
    """Answer line by line. Each answer is written at once, because the program at the other end may wait for it."""
    checker = BatchChecker({}, refuse_unknown_in_device)
    has_begun, bad = False, 0
    for number, raw in enumerate(_lines(file), 1):
        if not raw.strip():
            continue
        try:
            line = _parsed(raw)
            if not has_begun and has_defaults(line):
                checker, has_begun = BatchChecker(line, refuse_unknown_in_device), True
                continue
            has_begun = True
            answer = _verdict(checker.check(line))
        except DriverError as fault:
            bad += 1
            answer = _unread(raw, number, str(fault))
        except Exception as fault:  # noqa: BLE001  (a fault in one line must not stop the others)
            bad += 1
            text = f"this is a bug in dra-driver: {type(fault).__name__}: {fault}"
            answer = _unread(raw, number, text)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _verdict(answer: Wire) -> Wire:
    """Return the document of an answer. Its `kind` becomes `errorKind`, because a document has a `kind` of its own."""
    content = {("errorKind" if key == "kind" else key): value for key, value in answer.items()}
    return OutputDocument(DocumentKind.SELECTOR_VERDICT, content).wire()


def _unread(raw: bytes, number: int, error: str) -> Wire:
    return batch_fault(_id(raw), number, error).wire()


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines. A line longer than `_MAX_LINE` is truncated, and is then reported because it is not JSON."""
    while raw := file.readline(_MAX_LINE):
        yield raw
        while raw and not raw.endswith(b"\n"):
            raw = file.readline(_MAX_LINE)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw.decode("utf-8-sig"))
    except RecursionError as fault:
        raise InputError("batch", "the line is nested too deeply") from fault
    except ValueError as fault:
        raise InputError("batch", f"the line is not JSON: {fault}") from fault
    if not isinstance(line, dict):
        raise InputError("batch", "the line is not a JSON object")
    return line


def _id(raw: bytes) -> Any:
    """Return the id of an invalid line, or None if the id can't be read."""
    try:
        return _parsed(raw).get("id")
    except InputError:
        return None
