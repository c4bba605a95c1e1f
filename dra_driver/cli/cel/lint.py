"""`dra-driver cel lint`: find selectors that compile but cause trouble, and show how to write them better.

In: selectors, and devices if there are any. Out: findings; with --fix, better expressions written into the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dra_driver.cli.cel.report import say_compiled, say_heading
from dra_driver.cli.inputs.options import gather, input_options, output_option
from dra_driver.cli.output import console, say, say_code, write_document
from dra_driver.model.errors import ExitCode, InputError
from dra_driver.selectors.lint.autoscalers import Autoscaler
from dra_driver.selectors.lint.findings import RULES
from dra_driver.views.objects.documents import STDIN, read_text, shown
from dra_driver.views.verdicts.given import Given
from dra_driver.views.verdicts.judge import Judged, judge
from dra_driver.views.verdicts.linting import Linted, Place, findings_document, linted, linted_again
from dra_driver.views.verdicts.rewrite import Exchange, exchanged
from dra_driver.views.wording import plural


@click.command(name="lint", epilog="Rules: " + ", ".join(RULES) + ". Each is described in docs/selectors.md.")
@input_options
@click.option(
    "--disable", "disabled", multiple=True, type=click.Choice(list(RULES)), metavar="ID", help="disable a rule"
)
@click.option(
    "--autoscaler",
    type=click.Choice([one.value for one in Autoscaler]),
    help="find what this autoscaler can't know of a node that it has yet to start",
)
@click.option("--fix", is_flag=True, help="write safe fixes into the files; for -e, print the better expression")
@output_option
def command(disabled: tuple[str, ...], autoscaler: str | None, output: str, *, fix: bool, **options: Any) -> int:
    """Find selectors that compile but cause trouble.

    With devices at hand (ResourceSlices, --fleet, a cluster) every selector is tried on each of them; without, only
    the expression itself is checked. A fix is safe when no verdict on any of the devices changes.

    \b
      dra-driver cel lint deviceclasses/ --fleet dgx-h100
      dra-driver cel lint --fix claim.yaml --fleet mixed
      dra-driver cel lint --autoscaler karpenter-aws claim.yaml

    \b
    Exit status:
      0  nothing found, or everything fixed       3  an expression does not compile, a file is wrong
      1  findings                                 5  the cluster does not answer
      2  the command line is wrong
    """  # noqa: D301
    given = gather(options, needs_devices=False)
    judged = judge(given.queries, given.fleet, given.engine(), given.environment)
    scaler = Autoscaler(autoscaler) if autoscaler else None
    found = list(linted(judged, given, frozenset(disabled), scaler))
    broken = [one for query in judged for one in query.compiled if one.error is not None]
    fixed = _write(found) if fix else frozenset()
    if fix:
        found = [linted_again(one, fixed, frozenset(disabled), scaler) for one in found]
    if output == "table":
        _show(judged, found, given, fixed, fix=fix)
    else:
        write_document(findings_document(judged, found, given, fixed), output)
    if broken:
        return ExitCode.BAD_INPUT
    return ExitCode.NO_MATCH if any(one.findings for one in found) else ExitCode.OK


def _write(found: list[Linted]) -> frozenset[Place]:
    """Write better expressions into their files and return those that were written."""
    by_file: dict[str, list[Linted]] = {}
    mended: set[Place] = set()
    for one in found:
        document = one.compiled.written.document
        if one.better is not None and document is not None and document.origin != STDIN:
            by_file.setdefault(document.origin, []).append(one)
    for origin, rows in by_file.items():
        exchanges = [
            Exchange(one.compiled.written.document.number, one.compiled.written.steps, one.better)
            for one in rows
            if one.compiled.written.document is not None and one.better is not None
        ]
        text = exchanged(read_text(origin), origin, exchanges)
        if text is None:
            continue  # the findings stay, and they show the better expression for the user to write by hand
        try:
            Path(origin).write_text(text, encoding="utf-8")
        except OSError as fault:
            raise InputError("unwritable", f"{shown(origin)} can't be written: {fault.strerror}") from fault
        mended |= {one.place for one in rows}
    return frozenset(mended)


def _show(judged: list[Judged], found: list[Linted], given: Given, fixed: frozenset[Place], *, fix: bool) -> None:
    out = console()
    say_heading(out, given)
    if not given.fleet.devices:
        say(out, "no devices at hand: only the expressions are checked", style="dim")
    for query in judged:
        if not query.compiles:
            out.print()
            say(out, query.query.title, style="bold")
            say_compiled(out, query, given)
    for one in found:
        _show_linted(out, one, fixed, fix=fix)
    count = sum(len(one.findings) for one in found)
    out.print()
    say(out, f"{plural(count, 'finding')} in {plural(len(found), 'selector')}", style="bold" if count else "green")


def _show_linted(out: Any, one: Linted, fixed: frozenset[Place], *, fix: bool) -> None:
    written = one.compiled.written
    where = f"{shown(written.document.origin)}: " if written.document else ""
    if not one.findings and one.place not in fixed:
        return
    out.print()
    say(out, f"{where}{written.label}", style="bold")
    for finding in one.findings:
        say(out, f"{finding.rule}: {finding.message}", indent=2, style="yellow")
        if finding.clause and finding.clause != written.expression:
            say(out, f"in: {finding.clause}", indent=4, style="dim")
        if finding.fix and not finding.is_safe:
            say_code(out, f"perhaps: {finding.fix}", indent=4)
        if finding.effect:
            say(out, f"but {finding.effect}", indent=4)
    if one.place in fixed:
        say(out, "mended:", indent=2, style="green")
    elif one.better is not None:
        say(out, "better:" if fix else "better (--fix writes it):", indent=2, style="green")
    if one.better is not None:
        say_code(out, one.better, indent=4)
