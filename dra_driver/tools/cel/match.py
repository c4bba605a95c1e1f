"""`dra-driver cel test`: which devices match, node by node.

In: devices and selectors. Out: a table with counts, or a document.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click

from dra_driver.selectors.advice.remedies import Remedy
from dra_driver.selectors.engine import Engine
from dra_driver.selectors.explain import ExpressionPart
from dra_driver.tools.cel.linting import explanations_document, explanations_of, narrowed
from dra_driver.tools.cel.verdicts import (
    ABORT,
    MATCH,
    NO_MATCH,
    QueryVerdicts,
    VerdictGroup,
    error_offset,
    exit_code,
    judge,
    matches_document,
    misses,
    remedy_of,
    rows_of,
    unknowns,
)
from dra_driver.tools.options import input_options, output_option, read_inputs
from dra_driver.tools.output import Column, console, print_code, print_text, show_table, write_document
from dra_driver.tools.world.documents import shown
from dra_driver.tools.world.fields import folded, plural
from dra_driver.tools.world.fleet import FleetDevice
from dra_driver.tools.world.queries import SelectorInputs, WrittenSelector

# Lines that the `cel` commands share: headings, and compile errors with suggestions.

_SOURCE = " | "
_MARKER = re.compile(r" \| [.．]*[\^＾]?")  # noqa: RUF001  (below wide characters, the marks are wide as well)
COLOURS = {MATCH: "green", NO_MATCH: "", ABORT: "bold magenta"}


def print_heading(out: Any, given: SelectorInputs, *, engine: str = "", caveat: str | None = None) -> None:
    """Print the version whose rules apply, and where the devices come from."""
    rules = f"Kubernetes {given.kubernetes}{' (derived)' if given.verdicts == 'derived' else ''}"
    fleet = given.fleet
    held = ""
    if fleet.sources:
        devices, nodes = plural(fleet.size, "device"), plural(fleet.node_count, "node")
        held = f"{devices} on {nodes} from {', '.join(fleet.sources)}; "
    print_text(out, f"{held}{f'engine {engine}' if engine else f'rules of {rules}'}", style="dim")
    if caveat:
        print_text(out, caveat, style="bold yellow")
    elif given.verdicts == "derived":
        print_text(
            out, f"Verdicts for {given.kubernetes} are derived, because no recorded ones exist yet.", style="yellow"
        )
    for note in fleet.notes:
        print_text(out, note, style="yellow")


def print_query(out: Any, judged: QueryVerdicts, given: SelectorInputs) -> None:
    """Print a query's title, and the problems with its expressions."""
    out.print()
    users = f" (used by {', '.join(judged.query.users)})" if judged.query.users else ""
    print_text(out, f"{judged.query.title}{users}", style="bold")
    print_problems(out, judged, given)


def print_problems(out: Any, judged: QueryVerdicts, given: SelectorInputs) -> None:
    """Print the problems with the expressions of a query: compile errors, refusals, unknown names."""
    for one in judged.compiled:
        if one.error is not None:
            label = f"{place_of(one.written, given, error_offset(one))}{one.written.label}"
            print_text(out, f"{label} does not compile ({one.error.kind} error):", indent=2, style="bold red")
            for line in error_lines(one.error.text, out.width - 4):
                out.print(f"    {line}", markup=False, emoji=False, soft_wrap=True)
        elif one.refusal is not None:
            label = f"{place_of(one.written, given)}{one.written.label}"
            print_text(out, f"{label}: the API server refuses it in a new object:", indent=2, style="bold yellow")
            print_text(out, one.refusal, indent=4)
        found, missing = remedy_of(one, judged, given), unknowns(one, given)
        for unknown in missing if found is None or one.error is None else ():
            print_text(out, unknown.sentence, indent=4, style="yellow")
        if found is not None:
            sentences = [text for text in found.sentences if not any(unknown.name in text for unknown in missing)]
            print_remedy(out, Remedy(tuple(sentences), found.better), indent=4)


def place_of(written: WrittenSelector, given: SelectorInputs, offset: int = 0) -> str:
    """Return "FILE:LINE:COLUMN: " for a character of an expression; "" if no file has it."""
    if written.document is None:
        return ""
    position = given.position(written, offset)
    return f"{shown(written.document.origin)}:{f'{position.line}:{position.column}:' if position else ''} "


def print_remedy(out: Any, found: Remedy | None, indent: int = 0) -> None:
    """Print what is wrong with an expression, and what to write instead."""
    for text in found.sentences if found else ():
        print_text(out, text, indent=indent, style="yellow")
    if found and found.better:
        print_text(out, "write:", indent=indent, style="green")
        print_code(out, found.better, indent=indent + 2)


def error_lines(text: str, width: int) -> list[str]:
    """Return a compile error as lines. If the marked line is too long, only the text around the mark is kept."""
    laid_out: list[str] = []
    room = max(8, width - 5)
    for line in text.splitlines():
        source = laid_out[-1] if laid_out else ""
        if not (_MARKER.fullmatch(line) and len(source) > room and source.startswith(_SOURCE)):
            laid_out.append(line)
            continue
        body, marker = source[len(_SOURCE) :], line[len(_SOURCE) :]
        start = max(0, len(marker) - room * 2 // 3)
        laid_out[-1] = (
            f"{_SOURCE}{'…' if start else ''}{body[start : start + room]}{'…' if start + room < len(body) else ''}"
        )
        laid_out.append(f"{_SOURCE}{'.' if start else ''}{marker[start:]}")
    return laid_out


_MIN_NAMES, _MAX_NAMES = 24, 120  # smallest and largest width, in characters, of the names of matching devices
_MAX_ERRORS = 5
_MAX_ROWS = 200


@click.command(name="test")
@input_options
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["kubernetes", "celpy"]),
    default="kubernetes",
    show_default=True,
    help="celpy: a second opinion from cel-python, not the scheduler's verdict",
)
@click.option("--devices", "by_device", is_flag=True, help="a row for each device instead of each node")
@output_option
def cel_test_command(engine_name: str, output: str, *, by_device: bool, **options: Any) -> int:
    """Show which devices match, node by node.

    Selectors are evaluated in the scheduler's order: those of the class first, then those of the request. A device
    on which an expression fails is not a mismatch: it aborts the scheduling of the pod, and is counted separately.

    \b
      dra-driver cel test -e 'device.driver == "gpu.nvidia.com"' --fleet dgx-h100
      dra-driver cel test deployment.yaml --fleet dgx-h100 --fleet l40s
      kubectl get resourceslices -o yaml | dra-driver cel test claim.yaml -
      dra-driver cel test claim.yaml                    on the current cluster

    If there are more than 24 nodes, equal nodes are shown together: -o json has the first of them in `node` and the
    names of the others in `like`.

    Devices and classes have no namespace, so there is no -n or -A; selectors come from files, so there is no -l.

    If no option and no file has devices, they are those of the current cluster; without a kubeconfig, those of this
    node. Standard input is read only for -.

    \b
    Exit status:
      0  every request has a matching device        3  an expression does not compile, a file is wrong
      1  nothing matches a request                  4  a device would abort scheduling (beats 0 and 1)
      2  the command line is wrong                  5  the cluster or the hardware does not answer
    """  # noqa: D301
    given = read_inputs(options, folds=not by_device)
    engine = _engine(engine_name, given)
    judged = judge(given.queries, given.fleet, engine, given.environment)
    if output == "table":
        out = console()
        print_heading(out, given, engine="" if engine.caveat is None else engine.name, caveat=engine.caveat)
        for one in judged:
            _show(out, one, given, by_device=by_device)
    else:
        write_document(matches_document(judged, given, engine), output)
    return exit_code(judged, given.environment)


def _engine(name: str, given: SelectorInputs) -> Engine:
    if name == "celpy":
        from dra_driver.selectors.celpy_engine import CelPythonEngine

        return CelPythonEngine()
    return given.engine()


def _show(out: Any, judged: QueryVerdicts, given: SelectorInputs, *, by_device: bool) -> None:
    print_query(out, judged, given)
    if not judged.compiles:
        return
    if not given.fleet.devices:
        print_text(out, "there are no devices", indent=2, style="yellow")
        return
    if by_device:
        _show_devices(out, judged)
    else:
        _show_nodes(out, judged)
    _show_sum(out, judged)
    for miss in misses(judged) if not judged.count(MATCH) else ():
        print_text(out, f"nearest miss: {miss.sentence}", indent=2, style="cyan")


def _show_nodes(out: Any, judged: QueryVerdicts) -> None:
    found = rows_of(judged)
    room = out.width - max(len(folded(names)) for names, _ in found) - len("match   no match   aborts") - 12
    rows = []
    for nodes, held in found:
        counts = [len(held[MATCH]), len(held[NO_MATCH]), len(held[ABORT])]
        names = _names([device.name for device in held[MATCH]], min(max(room, _MIN_NAMES), _MAX_NAMES))
        rows.append((folded(nodes), *map(str, counts), names))
    columns = (
        Column("node"),
        Column("match", is_number=True),
        Column("no match", is_number=True),
        Column("aborts", is_number=True),
        Column("matching devices"),
    )
    show_table(out, "", columns, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        print_text(out, f"and {len(rows) - _MAX_ROWS:,} more kinds of nodes; -o json has all", indent=2)


def _show_devices(out: Any, judged: QueryVerdicts) -> None:
    words = {MATCH: "match", NO_MATCH: "no match", ABORT: "aborts"}
    rows = []
    for group in judged.groups:
        verdict = group.verdict
        why = verdict.error or ("" if verdict.step is None else judged.compiled[verdict.step].written.label)
        rows += [(device.node, device.driver, device.name, words[verdict.kind], why) for device in group.devices]
    columns = (Column("node"), Column("driver"), Column("device"), Column("verdict"), Column("decided by"))
    show_table(out, "", columns, sorted(rows, key=lambda row: (row[0], row[2])))


def _names(names: list[str], room: int) -> str:
    """Format as many device names as fit in a cell.

    >>> _names(["gpu-1", "gpu-2", "gpu-3"], 16), _names([], 16)
    ('gpu-1, gpu-2, +1', '-')
    """
    if len(", ".join(names)) <= room:
        return ", ".join(names) or "-"
    kept = [names[0] if len(names[0]) <= room - 5 else f"{names[0][: room - 6]}…"]
    for name in names[1:]:
        if len(", ".join([*kept, name])) + len(f", +{len(names)}") > room:
            break
        kept.append(name)
    return ", ".join(kept if len(kept) == len(names) else [*kept, f"+{len(names) - len(kept)}"])


def _show_sum(out: Any, judged: QueryVerdicts) -> None:
    from rich.text import Text

    counts = ((MATCH, "match"), (NO_MATCH, "do not match"), (ABORT, "would abort scheduling"))
    parts = Text("  ")
    for kind, words in counts:
        if count := judged.count(kind):
            parts.append(f"{', ' if len(parts) > 2 else ''}{count:,} {words}", style=COLOURS[kind])
    parts.append(f", of {plural(sum(map(judged.size, judged.groups)), 'device')}")
    out.print(parts)
    errors: Counter[str] = Counter()
    first: dict[str, FleetDevice] = {}
    for group in judged.groups:
        if group.verdict.error is not None:
            errors[group.verdict.error] += judged.size(group)
            first.setdefault(group.verdict.error, group.devices[0])
    for text, count in errors.most_common(_MAX_ERRORS):
        named = f"{first[text].node}/{first[text].name}{f' and {count - 1} more' if count > 1 else ''}"
        print_text(out, f"{named}: {text}", indent=4, style=COLOURS[ABORT])
    if len(errors) > _MAX_ERRORS:
        print_text(out, f"and {len(errors) - _MAX_ERRORS} other errors", indent=4, style=COLOURS[ABORT])
    if errors:
        print_text(
            out, "see them part by part: dra-driver cel explain; guard them: dra-driver cel lint --fix", indent=4
        )


# `dra-driver cel explain`: why a device matches, does not match, or aborts scheduling.

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
            _show_parts(out, one, given, max_groups)
    else:
        write_document(explanations_document(judged, given), output)
    return exit_code(judged, given.environment)


def _show_parts(out: Any, judged: QueryVerdicts, given: SelectorInputs, max_groups: int) -> None:
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
