"""Lines that the `cel` commands share: headings, and compile errors with suggestions.

In: evaluated queries. Out: lines on a console.
"""

from __future__ import annotations

import re
from typing import Any

from dra_driver.cli.output import print_code, print_text
from dra_driver.selectors.remedies.remedies import Remedy
from dra_driver.views.verdicts.documents import unknowns
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, NO_MATCH, QueryVerdicts
from dra_driver.views.verdicts.remedies import remedy_of
from dra_driver.views.wording import plural

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
            print_text(
                out, f"{one.written.label} does not compile ({one.error.kind} error):", indent=2, style="bold red"
            )
            for line in error_lines(one.error.text, out.width - 4):
                out.print(f"    {line}", markup=False, emoji=False, soft_wrap=True)
        elif one.refusal is not None:
            print_text(
                out, f"{one.written.label}: the API server refuses it in a new object:", indent=2, style="bold yellow"
            )
            print_text(out, one.refusal, indent=4)
        found, missing = remedy_of(one, judged, given), unknowns(one, given)
        for unknown in missing if found is None or one.error is None else ():
            print_text(out, unknown.sentence, indent=4, style="yellow")
        if found is not None:
            sentences = [text for text in found.sentences if not any(unknown.name in text for unknown in missing)]
            print_remedy(out, Remedy(tuple(sentences), found.better), indent=4)


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
