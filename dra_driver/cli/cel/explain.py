"""`dra-driver cel explain`: why a device matches, does not match, or aborts scheduling.

In: devices and selectors. Out: for each group of equal devices, the expression as a tree with the value of each part
and a mark at the part that decides; for all devices together, the nearest misses and the names that no device has.
"""

from __future__ import annotations

from typing import Any

import click

from dra_driver.cli.cel.report import COLOURS, print_heading, print_query
from dra_driver.cli.inputs.options import input_options, output_option, read_inputs
from dra_driver.cli.output import console, print_text, write_document
from dra_driver.selectors.explain import ExpressionPart
from dra_driver.views.verdicts.explanations import explanations_document, explanations_of, narrowed
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.misses import misses
from dra_driver.views.verdicts.query_verdicts import (
    ABORT,
    MATCH,
    NO_MATCH,
    QueryVerdicts,
    VerdictGroup,
    exit_code,
    judge,
)
from dra_driver.views.wording import plural

_VERDICTS = {MATCH: "match", NO_MATCH: "no match", ABORT: "abort scheduling"}
_MAX_NAMED = 3


@click.command(name="explain")
@input_options
@click.option("--device", "only", multiple=True, metavar="NAME", help="explain only these devices")
@click.option(
    "--groups",
    "max_groups",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="how many groups of equal devices the table shows",
)
@output_option
def cel_explain_command(only: tuple[str, ...], max_groups: int, output: str, **options: Any) -> int:
    """Explain why devices match or not: the value of each part, the part that decides, the nearest miss.

    Devices that agree on everything the selectors read are explained once. In the tree, * marks the part that decides.

    \b
      dra-driver cel explain -e 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0' \\
          --fleet dgx-h100
      dra-driver cel explain claim.yaml slices.yaml

    \b
    Exit status:
      0  every request has a matching device        3  an expression does not compile, a file is wrong
      1  nothing matches a request                  4  a device would abort scheduling (beats 0 and 1)
      2  the command line is wrong                  5  the cluster or the hardware does not answer
    """  # noqa: D301
    given = read_inputs(options)
    if only:
        given = narrowed(given, only)
    judged = judge(given.queries, given.fleet, given.engine(), given.environment)
    if output == "table":
        out = console()
        print_heading(out, given)
        for one in judged:
            _show(out, one, given, max_groups)
    else:
        write_document(explanations_document(judged, given), output)
    return exit_code(judged, given.environment)


def _show(out: Any, judged: QueryVerdicts, given: SelectorInputs, max_groups: int) -> None:
    print_query(out, judged, given)
    if not judged.compiles:
        return
    if not judged.groups:
        print_text(out, "there are no devices", indent=2, style="yellow")
    order = {ABORT: 0, MATCH: 1, NO_MATCH: 2}
    ranked = sorted(judged.groups, key=lambda g: (order[g.verdict.kind], -(g.verdict.step or 0), -len(g.devices)))
    for group in ranked[:max_groups]:
        _show_group(out, judged, group)
    if len(ranked) > max_groups:
        left = sum(len(group.devices) for group in ranked[max_groups:])
        text = f"{plural(len(ranked) - max_groups, 'more group')} with {plural(left, 'device')} not shown (--groups)"
        print_text(out, text, indent=2, style="dim")
    for miss in misses(judged):
        print_text(out, f"nearest miss: {miss.sentence}", indent=2, style="cyan")


def _show_group(out: Any, judged: QueryVerdicts, group: VerdictGroup) -> None:
    out.print()
    named = [f"{device.node}/{device.name}" for device in group.devices[:_MAX_NAMED]]
    rest = f" and {len(group.devices) - len(named)} more" if len(group.devices) > len(named) else ""
    verdict = _VERDICTS[group.verdict.kind]
    title = f"{plural(len(group.devices), 'device')}: {verdict}"
    print_text(out, title, indent=2, style=COLOURS[group.verdict.kind] or "bold")
    print_text(out, f"{', '.join(named)}{rest}", indent=4, style="dim")
    if not judged.compiled:
        print_text(out, "there is no selector: every device matches", indent=4)
    for number, explanation in explanations_of(judged, group):
        if len(judged.compiled) > 1:
            print_text(out, f"{judged.compiled[number].written.label}", indent=4, style="italic")
        if explanation.tree is None:
            continue  # this device can't be converted at all; the error printed below explains why
        ends_it = group.verdict.step in {None, number}
        _show_part(out, explanation.tree, 6, marks=ends_it)
    if group.verdict.error:
        print_text(out, group.verdict.error, indent=6, style=COLOURS[ABORT])
    not_evaluated = (
        len(judged.compiled) - 1 - (group.verdict.step if group.verdict.step is not None else len(judged.compiled))
    )
    if not_evaluated > 0:
        print_text(out, f"{plural(not_evaluated, 'later selector')} not evaluated", indent=4, style="dim")


def _show_part(out: Any, part: ExpressionPart, indent: int, *, marks: bool) -> None:
    """Print a part of the expression with its value, then the parts below it."""
    decides = marks and part.decides
    mark = "* " if decides else "  "
    if part.error is not None:
        value, style = f"error: {part.error}", COLOURS[ABORT]
    elif part.value is None:
        value, style = "not reached", "dim"
    else:
        value, style = part.value, {"true": "green", "false": "red"}.get(part.value, "")
    value_room = len(value) + 5
    text = " ".join(part.text.split())
    room = max(24, out.width - indent - value_room)
    if len(text) > room:
        text = f"{text[: room - 1]}…"
    from rich.text import Text

    line = Text(" " * (indent - 2) + mark, style="bold" if decides else "")
    line.append(text, style="bold" if decides else "")
    line.append(" = ", style="dim")
    line.append(value, style=style)
    out.print(line, soft_wrap=True)
    for inner in part.parts:
        _show_part(out, inner, indent + 2, marks=marks)
