"""The parts that all documents about selectors have: the inputs, and each expression with the names no device has.

In: evaluated queries. Out: plain dicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_driver.model.wire import Wire
from dra_driver.selectors.checking.declarations import declare
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.suggestions import UnknownName, suggest, unknown_names
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.query_verdicts import CompiledSelector, QueryVerdicts
from dra_driver.views.verdicts.remedies import remedy_document, remedy_of


def unknowns(one: CompiledSelector, given: SelectorInputs) -> list[UnknownName]:
    """Return the unknown names: functions if the expression does not compile, otherwise attributes and capacities."""
    if one.error is not None:
        return suggest(one.error, declare(given.kubernetes, given.gates, given.environment))
    if isinstance(one.selector, KubernetesSelector) and given.fleet.devices:
        return unknown_names(one.selector.read_set, _views_by_names(given.fleet))
    return []


def views_of(fleet: Fleet) -> list[DeviceView]:
    """Convert all devices."""
    return [prepare_device(device.wire, device.driver) for device in fleet.devices]


def _views_by_names(fleet: Fleet) -> Iterable[DeviceView]:
    """Convert one device for each set of attribute and capacity names."""
    known: dict[Any, DeviceView] = {}
    for device in fleet.devices:
        key = device.driver, *(tuple(device.wire.get(field) or ()) for field in ("attributes", "capacity"))
        if key not in known or known[key].problem is not None:
            known[key] = prepare_device(device.wire, device.driver)
    return known.values()


def compiled_document(one: CompiledSelector, judged: QueryVerdicts, given: SelectorInputs) -> Wire:
    """Return the JSON document for one expression."""
    error, selector = one.error, one.selector
    return {
        "source": one.written.label,
        "file": one.written.document.origin if one.written.document else None,
        "path": list(one.written.steps),
        "expression": one.written.expression,
        "compileError": error.text if error else None,
        "errorKind": str(error.kind) if error else None,
        "type": selector.output_type if selector else None,
        "maxCost": selector.max_cost if selector else None,
        "admissible": selector.admissible if selector else False,
        "refusal": one.refusal,
        "unknown": [{"kind": u.kind, "name": u.name, "suggestions": list(u.suggestions)} for u in unknowns(one, given)],
        "remedy": remedy_document(remedy_of(one, judged, given)),
    }


def inputs_document(given: SelectorInputs) -> Wire:
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
