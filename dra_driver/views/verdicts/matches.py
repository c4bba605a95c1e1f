"""Which devices match, node by node.

In: evaluated queries. Out: rows, in which nodes with equal verdicts are combined, and the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.allocation.explaining.node_kinds import FEW_NODES
from dra_driver.model.wire import Wire
from dra_driver.selectors.engine import Engine
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.fleet.devices import FleetDevice
from dra_driver.views.verdicts.documents import compiled_document, inputs_document
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.misses import miss_document, misses
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, NO_MATCH, QueryVerdicts


def rows_of(judged: QueryVerdicts) -> list[tuple[list[str], dict[str, list[FleetDevice]]]]:
    """Return the nodes with their devices by verdict. If there are many nodes, equal ones are combined."""
    nodes = judged.by_node()
    if sum(1 + len(judged.like.get(node, ())) for node in nodes) <= FEW_NODES:
        return [([name], held) for node, held in nodes.items() for name in (node, *judged.like.get(node, ()))]
    found: dict[Any, tuple[list[str], dict[str, list[FleetDevice]]]] = {}
    errors = judged.errors()
    for node, held in nodes.items():
        key = tuple(
            tuple((one.driver, one.pool == node or one.pool, one.name, errors.get(id(one))) for one in held[kind])
            for kind in (MATCH, NO_MATCH, ABORT)
        )
        found.setdefault(key, ([], held))[0].extend((node, *judged.like.get(node, ())))
    return list(found.values())


def matches_document(judged: Sequence[QueryVerdicts], given: SelectorInputs, engine: Engine) -> OutputDocument:
    """Return the document of all queries."""
    content = {
        **inputs_document(given),
        "engine": engine.name,
        "caveat": engine.caveat,
        "queries": [_document(one, given) for one in judged],
    }
    return OutputDocument(DocumentKind.SELECTOR_MATCHES, content)


def _document(judged: QueryVerdicts, given: SelectorInputs) -> Wire:
    errors = judged.errors()

    def named(device: FleetDevice, node: str) -> Wire:
        pool = node if device.pool == device.node else device.pool
        found: Wire = {"driver": device.driver, "pool": pool, "device": device.name}
        if id(device) in errors:
            found["error"], found["selector"] = errors[id(device)]
        return found

    return {
        "query": judged.query.title,
        "usedBy": judged.query.users,
        "selectors": [compiled_document(one, judged, given) for one in judged.compiled],
        "counts": {kind: judged.count(kind) for kind in (MATCH, NO_MATCH, ABORT)},
        "nodes": [
            {
                "node": names[0],
                "like": names[1:],
                **{kind: [named(device, names[0]) for device in held[kind]] for kind in (MATCH, NO_MATCH, ABORT)},
            }
            for names, held in rows_of(judged)
        ],
        "nearestMisses": [] if judged.count(MATCH) else [miss_document(miss) for miss in misses(judged)],
    }
