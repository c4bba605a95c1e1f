"""`dra-driver cel lint`: find selectors that compile but cause trouble, and show how to write them better.

In: selectors, and devices if there are any. Out: findings; with --fix, better expressions written into the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dra_driver.cli.cel.report import print_heading, print_problems
from dra_driver.cli.inputs.options import input_options, output_option, read_inputs
from dra_driver.cli.output import console, print_code, print_text, write_document
from dra_driver.model.errors import ExitCode, InputError
from dra_driver.selectors.lint.autoscalers import Autoscaler
from dra_driver.selectors.lint.findings import RULES
from dra_driver.views.objects.texts import STDIN, read_text, shown
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.linting import (
    LintedSelector,
    SelectorPlace,
    findings_document,
    lint_queries,
    lint_rewritten,
)
from dra_driver.views.verdicts.query_verdicts import QueryVerdicts, judge
from dra_driver.views.verdicts.rewrite import ExpressionChange, with_new_expressions
from dra_driver.views.wording import plural


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
@output_option
def cel_lint_command(
    disabled: tuple[str, ...], autoscaler: str | None, output: str, *, fix: bool, **options: Any
) -> int:
    """Find selectors that compile but cause trouble.

    If there are devices (ResourceSlices, --fleet, a cluster), every selector is evaluated on each of them; without
    devices, only the expression itself is checked. A fix is safe if no verdict on any of the devices changes.

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
    given = read_inputs(options, needs_devices=False, refuses_configs=True)
    judged = judge(given.queries, given.fleet, given.engine(), given.environment)
    scaler = Autoscaler(autoscaler) if autoscaler else None
    found = list(lint_queries(judged, given, frozenset(disabled), scaler))
    broken = [one for query in judged for one in query.compiled if one.error is not None]
    fixed = _write(found) if fix else frozenset()
    if fix:
        found = [lint_rewritten(one, fixed, frozenset(disabled), scaler) for one in found]
    if output == "table":
        _show(judged, found, given, fixed, fix=fix)
    else:
        write_document(findings_document(judged, found, given, fixed), output)
    if broken:
        return ExitCode.BAD_INPUT
    return ExitCode.NO_MATCH if any(one.findings for one in found) else ExitCode.OK


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
            ExpressionChange(one.compiled.written.document.number, one.compiled.written.steps, one.better)
            for one in rows
            if one.compiled.written.document is not None and one.better is not None
        ]
        text = with_new_expressions(read_text(origin), origin, changes)
        if text is None:
            continue  # the findings stay, and show the better expression, which the user can write by hand
        try:
            Path(origin).write_text(text, encoding="utf-8")
        except OSError as fault:
            raise InputError("unwritable", f"{shown(origin)} can't be written: {fault.strerror}") from fault
        written |= {one.place for one in rows}
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
        _show_linted(out, one, fixed, fix=fix)
    count = sum(len(one.findings) for one in found)
    out.print()
    print_text(
        out, f"{plural(count, 'finding')} in {plural(len(found), 'selector')}", style="bold" if count else "green"
    )


def _show_linted(out: Any, one: LintedSelector, fixed: frozenset[SelectorPlace], *, fix: bool) -> None:
    written = one.compiled.written
    where = f"{shown(written.document.origin)}: " if written.document else ""
    if not one.findings and one.place not in fixed:
        return
    out.print()
    print_text(out, f"{where}{written.label}", style="bold")
    for finding in one.findings:
        print_text(out, f"{finding.rule}: {finding.message}", indent=2, style="yellow")
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
