"""Output that the `cel` commands share: headings, compile errors with suggestions, verdict documents.

In: evaluated queries. Out: lines on a console, or plain dicts for --output json and yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dra_driver.cli.cel.judge import ABORT, MATCH, NO_MATCH, Compiled, Judged, number
from dra_driver.cli.inputs.devices import Fleet
from dra_driver.cli.inputs.options import Given
from dra_driver.cli.output import say
from dra_driver.model.wire import Wire
from dra_driver.selectors.checking.declarations import declare
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.kubernetes_engine import KubernetesSelector
from dra_driver.selectors.suggestions import Unknown, suggest, unknown_names

_SOURCE = " | "
_MARKER = re.compile(r" \| [.．]*[\^＾]?")  # noqa: RUF001  (wide characters are marked with wide signs)
COLOURS = {MATCH: "green", NO_MATCH: "", ABORT: "bold magenta"}


def say_heading(out: Any, given: Given, *, engine: str = "", caveat: str | None = None) -> None:
    """Print which version's rules apply and which devices are used."""
    rules = f"Kubernetes {given.kubernetes}{' (derived)' if given.verdicts == 'derived' else ''}"
    fleet = given.fleet
    held = ""
    if fleet.sources:
        devices, nodes = plural(fleet.size, "device"), plural(fleet.node_count, "node")
        held = f"{devices} on {nodes} from {', '.join(fleet.sources)}; "
    say(out, f"{held}{f'engine {engine}' if engine else f'rules of {rules}'}", style="dim")
    if caveat:
        say(out, caveat, style="bold yellow")
    elif given.verdicts == "derived":
        say(out, f"Verdicts for {given.kubernetes} are derived, because no recorded ones exist yet.", style="yellow")
    for note in fleet.notes:
        say(out, note, style="yellow")


def say_compiled(out: Any, judged: Judged, given: Given) -> None:
    """Print the problems with the expressions of a query: compile errors, refusals, unknown names."""
    for one in judged.compiled:
        if one.error is not None:
            say(out, f"{one.written.label} does not compile ({one.error.kind} error):", indent=2, style="bold red")
            for line in error_lines(one.error.text, out.width - 4):
                out.print(f"    {line}", markup=False, emoji=False, soft_wrap=True)
        elif one.refusal is not None:
            say(out, f"{one.written.label}: the API server refuses it in a new object:", indent=2, style="bold yellow")
            say(out, one.refusal, indent=4)
        for unknown in unknowns(one, given):
            say(out, sentence(unknown), indent=4, style="yellow")


def error_lines(text: str, width: int) -> list[str]:
    """Format a compile error. If the marked line is too long, only the text around the mark is shown."""
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


def unknowns(one: Compiled, given: Given) -> list[Unknown]:
    """Return the unknown names: functions if the expression does not compile, else attributes of the devices."""
    if one.error is not None:
        return suggest(one.error, declare(given.kubernetes, given.gates, given.environment))
    if isinstance(one.selector, KubernetesSelector) and given.fleet.devices:
        return unknown_names(one.selector.read_set, _views_by_names(given.fleet))
    return []


def views_of(fleet: Fleet) -> list[DeviceView]:
    """Convert all devices."""
    return [prepare_device(device.wire, device.driver) for device in fleet.devices]


def _views_by_names(fleet: Fleet) -> Iterable[DeviceView]:
    """Convert one device for each distinct set of attribute and capacity names."""
    known: dict[Any, DeviceView] = {}
    for device in fleet.devices:
        key = device.driver, *(tuple(device.wire.get(field) or ()) for field in ("attributes", "capacity"))
        if key not in known or known[key].problem is not None:
            known[key] = prepare_device(device.wire, device.driver)
    return known.values()


def sentence(unknown: Unknown) -> str:
    """Return a sentence naming what does not exist and what was probably meant."""
    meant = f"; did you mean {' or '.join(unknown.suggestions)}?" if unknown.suggestions else ""
    if unknown.kind in {"attribute", "capacity", "domain"}:
        return f"no device has the {unknown.kind} {unknown.name}{meant}"
    return f"there is no {unknown.kind} {unknown.name}{meant}"


def compiled_document(one: Compiled, given: Given) -> Wire:
    """Return the JSON document for one expression."""
    error, selector = one.error, one.selector
    return {
        "source": one.written.label,
        "expression": one.written.expression,
        "compileError": error.text if error else None,
        "kind": str(error.kind) if error else None,
        "type": selector.output_type if selector else None,
        "maxCost": selector.max_cost if selector else None,
        "admissible": selector.admissible if selector else False,
        "refusal": one.refusal,
        "unknown": [{"kind": u.kind, "name": u.name, "suggestions": list(u.suggestions)} for u in unknowns(one, given)],
    }


def given_document(given: Given) -> Wire:
    """Return the JSON document for the inputs: version, gates and devices."""
    return {
        "kubernetes": given.kubernetes,
        "verdicts": given.verdicts,
        "gates": given.gates,
        "environment": given.environment,
        "devices": given.fleet.size,
        "nodes": given.fleet.node_count,
        "sources": list(given.fleet.sources),
        "notes": list(given.fleet.notes),
    }


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the singular or plural.

    >>> plural(1, "device"), plural(2, "match")
    ('1 device', '2 matches')
    """
    return f"{number(count)} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 's')) else 's'}"
