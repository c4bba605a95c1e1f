"""`dra-driver cel test`: which devices match, node by node.

In: devices and selectors. Out: a table with counts, or a document.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from dra_driver.cli.cel.report import COLOURS, print_heading, print_query
from dra_driver.cli.inputs.options import input_options, output_option, read_inputs
from dra_driver.cli.output import Column, console, print_text, show_table, write_document
from dra_driver.selectors.engine import Engine
from dra_driver.views.fleet.devices import FleetDevice
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.matches import matches_document, rows_of
from dra_driver.views.verdicts.misses import misses
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, NO_MATCH, QueryVerdicts, exit_code, judge
from dra_driver.views.wording import folded, plural

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
      kubectl get resourceslices -o yaml | dra-driver cel test claim.yaml

    If there are more than 24 nodes, equal nodes are shown together: -o json has the first of them in `node` and the
    names of the others in `like`.

    Devices and classes have no namespace, so there is no -n or -A; selectors come from files, so there is no -l.

    If no option names devices, they are read from standard input if something is piped in, and otherwise from this
    node's hardware.

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
        rows += [(one.node, one.driver, one.name, words[verdict.kind], why) for one in group.devices]
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
