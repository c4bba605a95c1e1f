"""The parts of the JSON schemas of documents: types, lists, records, objects of the API, and the use of GPUs.

In: names and schemas. Out: schemas (draft 2020-12). Devices have only the fields that this driver writes; allocation
results, which it passes on, may have others.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.allocation.funnel import STAGES
from dra_driver.allocation.rules import Category
from dra_driver.allocation.simulation import KINDS
from dra_driver.base.wire import Wire
from dra_driver.tools.usage.usage_document import Grouping

TEXT: Wire = {"type": "string"}
MAYBE_TEXT: Wire = {"type": ["string", "null"]}
FLAG: Wire = {"type": "boolean"}
MAYBE_FLAG: Wire = {"type": ["boolean", "null"]}
COUNT: Wire = {"type": "integer", "minimum": 0}
MAYBE_COUNT: Wire = {"type": ["integer", "null"], "minimum": 0}
SHARE: Wire = {"type": "number", "minimum": 0}
QUANTITY: Wire = {"type": "string", "pattern": "^[0-9.+-]+[a-zA-Z0-9]*$"}


def list_of(items: Wire) -> Wire:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def map_of(values: Wire) -> Wire:
    """Return the schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def maybe(schema: Wire) -> Wire:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Wire:
    """Return the schema of one of these texts."""
    return {"enum": list(values)}


def record(optional: Mapping[str, Wire] | None = None, /, **fields: Wire) -> Wire:
    """Return the schema of an object that has all of these fields, may have the `optional` ones, and has no other."""
    properties = {**fields, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


TEXTS = list_of(TEXT)
COUNTS = map_of(COUNT)

# -- objects of resource.k8s.io/v1 -------------------------------------------------------------------------------------

_VALUES: dict[str, Wire] = {"string": TEXT, "int": {"type": "integer"}, "bool": FLAG, "version": TEXT}
_LISTS = {f"{name}s": list_of(value) for name, value in _VALUES.items()}
_ATTRIBUTE: Wire = {**record(_VALUES | _LISTS), "minProperties": 1, "maxProperties": 1}
_RANGE = record({"min": QUANTITY, "max": QUANTITY, "step": QUANTITY})
_POLICY = record({"validValues": list_of(QUANTITY), "validRange": _RANGE}, default=QUANTITY)
_CAPACITY = record({"requestPolicy": _POLICY}, value=QUANTITY)
_AMOUNTS = map_of(record(value=QUANTITY))
TAINT = record({"value": TEXT, "timeAdded": TEXT}, key=TEXT, effect=TEXT)
COUNTER_SET = record(name=TEXT, counters=_AMOUNTS)
DEVICE = record(
    {
        "attributes": map_of(_ATTRIBUTE),
        "capacity": map_of(_CAPACITY),
        "allowMultipleAllocations": FLAG,
        "consumesCounters": list_of(record(counterSet=TEXT, counters=_AMOUNTS)),
        "taints": list_of(TAINT),
    },
    name=TEXT,
)
_RESULT: Wire = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("request", "driver", "pool", "device", "shareID"), TEXT),
        "adminAccess": MAYBE_FLAG,
        "consumedCapacity": map_of(QUANTITY),
    },
    "required": ["request", "driver", "pool", "device"],
}
ALLOCATION: Wire = {
    "type": "object",
    "properties": {"devices": {"type": "object", "properties": {"results": list_of(_RESULT)}}},
    "required": ["devices"],
}


# The schemas of documents about selectors.

GIVEN: dict[str, Wire] = {
    "kubernetes": TEXT,
    "verdicts": one_of("exact", "derived"),
    "gates": map_of(FLAG),
    "environment": one_of("stored", "new"),
    "devices": COUNT,
    "nodes": COUNT,
    "sources": TEXTS,
    "notes": TEXTS,
}
POSITION = maybe(record(line=COUNT, column=COUNT))
SELECTOR = record(
    source=TEXT,
    file=MAYBE_TEXT,
    path=list_of({"type": ["string", "integer"]}),
    position=POSITION,
    expression=TEXT,
    compileError=MAYBE_TEXT,
    errorKind=MAYBE_TEXT,
    type=MAYBE_TEXT,
    maxCost=MAYBE_COUNT,
    admissible=FLAG,
    refusal=MAYBE_TEXT,
    unknown=list_of(record(kind=TEXT, name=TEXT, suggestions=TEXTS)),
    remedy=maybe(record(sentences=TEXTS, better=MAYBE_TEXT)),
)
MISS = record(sentence=TEXT, selector=TEXT, clause=TEXT, reason=TEXT, devices=COUNT)
QUERY: dict[str, Wire] = {
    "query": TEXT,
    "usedBy": TEXTS,
    "selectors": list_of(SELECTOR),
    "counts": record(match=COUNT, noMatch=COUNT, abort=COUNT),
    "nearestMisses": list_of(MISS),
}
_PLACE = {"driver": TEXT, "pool": TEXT, "device": TEXT}
MATCHED = list_of(record(**_PLACE))
FAILED = list_of(record(**_PLACE, error=TEXT, selector=MAYBE_COUNT))
GROUP = record(
    verdict=one_of("match", "noMatch", "abort"),
    selector=MAYBE_COUNT,
    error=MAYBE_TEXT,
    devices=list_of(record(node=TEXT, **_PLACE)),
    explanations=list_of(
        record(
            selector=COUNT,
            match=MAYBE_FLAG,
            error=MAYBE_TEXT,
            deciding=MAYBE_TEXT,
            tree=maybe({"$ref": "#/$defs/part"}),
        )
    ),
)
PART = record(
    text=TEXT,
    value=MAYBE_TEXT,
    type=MAYBE_TEXT,
    error=MAYBE_TEXT,
    decides=FLAG,
    parts=list_of({"$ref": "#/$defs/part"}),
)
FINDING = record(
    rule=TEXT,
    severity=one_of("error", "warning", "note"),
    position=POSITION,
    message=TEXT,
    clause=MAYBE_TEXT,
    fix=MAYBE_TEXT,
    safe=FLAG,
    effect=MAYBE_TEXT,
)
LINTED = record(
    source=TEXT,
    file=MAYBE_TEXT,
    position=POSITION,
    expression=TEXT,
    better=MAYBE_TEXT,
    mended=FLAG,
    findings=list_of(FINDING),
)


# The schemas of documents about claims and pods: explanations, and moments of a simulation.

_REFUSED = list_of(record(device=TEXT, reason=TEXT))
_FUNNEL = record(
    claim=TEXT,
    request=TEXT,
    wants=MAYBE_COUNT,
    devices=COUNT,
    stages=list_of(record(name=one_of(*STAGES), left=COUNT, lost=_REFUSED)),
    fits=COUNT,
    errors=_REFUSED,
)
_OUTCOME = record(
    category=one_of(*map(str, Category)),
    results=maybe(list_of(ALLOCATION)),
    error=MAYBE_TEXT,
    othersPossible=FLAG,
    timesOut=FLAG,
)
EXPLANATION: dict[str, Wire] = {
    "subject": record(kind=TEXT, namespace=MAYBE_TEXT, name=TEXT),
    "ok": FLAG,
    "sentence": TEXT,
    "nodes": list_of(
        record(
            node=TEXT,
            like=TEXTS,
            ok=FLAG,
            sentence=TEXT,
            notes=TEXTS,
            skipped=MAYBE_TEXT,
            outcome=maybe(_OUTCOME),
            funnels=list_of(_FUNNEL),
        )
    ),
    "aborts": FLAG,
    "kubernetes": TEXT,
    "exact": FLAG,
    "notes": TEXTS,
    "gates": map_of(record(on=FLAG, how=TEXT)),
}
MOMENT = record(
    event=record(kind=one_of(*KINDS), target=MAYBE_TEXT, jobs=TEXTS),
    message=TEXT,
    placed=list_of(record(job=TEXT, node=TEXT, devices=TEXTS)),
    waiting=list_of(record(job=TEXT, reason=TEXT)),
    evicted=TEXTS,
    usage=record(devices=COUNT, held=SHARE, freeElsewhere=SHARE),
)
REARRANGEMENT = record(
    job=TEXT,
    node=TEXT,
    devices=TEXTS,
    moves=list_of(record(job=TEXT, source=TEXT, target=TEXT, leaves=TEXTS, gets=TEXTS)),
)


# The schemas of the trees and figures of a fleet.

UNSEEN = list_of(record(kind=TEXT, namespace=MAYBE_TEXT, partial=FLAG))
BRANCHES = list_of({"$ref": "#/$defs/branch"})
_HELD = {"request": TEXT, "adminAccess": FLAG, "consumedCapacity": map_of(QUANTITY)}
_FACTS: dict[str, Wire] = {
    "node": record(),
    "pool": record(driver=TEXT, pool=TEXT, generation=MAYBE_COUNT),
    "set": record(counterSet=MAYBE_TEXT, freePartitions=COUNTS),
    "device": {
        "oneOf": [
            record(
                type=MAYBE_TEXT,
                product=MAYBE_TEXT,
                profile=MAYBE_TEXT,
                memory=maybe(QUANTITY),
                state=one_of("held", "free", "tainted", "blocked"),
                taints=list_of(TAINT),
            ),
            record(driver=TEXT, pool=TEXT, device=TEXT, **_HELD),  # the fields of a claim
        ]
    },
    "claim": record(_HELD, namespace=MAYBE_TEXT, allocated=FLAG, terminating=FLAG),
    "pod": record(phase=MAYBE_TEXT, terminating=FLAG),
}
BRANCH: Wire = {
    "oneOf": [
        record(
            kind={"const": kind},
            name=TEXT,
            like=TEXTS,
            heldFraction=maybe(SHARE),
            flags=list_of(record(code=TEXT, message=TEXT)),
            facts=facts,
            children=BRANCHES,
        )
        for kind, facts in _FACTS.items()
    ]
}
HOLDER = record(name=TEXT, claims=COUNT, devices=COUNT, waiting=COUNT)
NODE_FIGURES = record(
    node=TEXT,
    like=TEXTS,
    gpus=COUNT,
    products=COUNTS,
    otherDevices=COUNT,
    wholeFree=COUNT,
    partitionsFree=COUNTS,
    held=COUNT,
    sick=COUNT,
)


_MONEY = maybe({"type": "number"})
_ROW = record(
    name=TEXT,
    allocatedHours=SHARE,
    busyHours=SHARE,
    idleHours=SHARE,
    unmeasuredHours=SHARE,
    unclaimedHours=SHARE,
    gpuHours=SHARE,
    cost=_MONEY,
    idleCost=_MONEY,
    unclaimedCost=_MONEY,
)
_CLAIM = {"namespace": TEXT, "name": TEXT, "model": TEXT, "profile": TEXT}
_TIME: Wire = {"type": "string", "format": "date-time"}
_POINT: Wire = {"type": "array", "prefixItems": [{"type": "number"}, {"type": ["number", "null"]}], "minItems": 2}
HISTORY: dict[str, Wire] = {
    "phase": TEXT,
    "node": TEXT,
    "conditions": list_of(record(type=TEXT, status=TEXT, reason=TEXT, message=TEXT, since=MAYBE_TEXT)),
    "events": list_of(record(time=MAYBE_TEXT, warning=FLAG, reason=TEXT, message=TEXT, **{"from": TEXT})),
    "eventsKnown": FLAG,
}
_READING = maybe(SHARE)
READINGS: dict[str, Wire] = {
    "at": _TIME,
    "nodes": map_of(map_of(record(busyPercent=_READING, memoryBytes=_READING, celsius=_READING, watts=_READING))),
}
DASHBOARD: dict[str, Wire] = {
    "name": TEXT,
    "title": TEXT,
    "about": TEXT,
    "begin": _TIME,
    "end": _TIME,
    "panels": list_of(
        record(
            row=TEXT,
            title=TEXT,
            kind=one_of("figure", "lines"),
            unit=TEXT,
            note=TEXT,
            stacked=FLAG,
            series=list_of(record(name=TEXT, points=list_of(_POINT))),
            more=COUNT,
            fault=MAYBE_TEXT,
        )
    ),
    "others": list_of(record(name=TEXT, title=TEXT)),
}
USAGE: dict[str, Wire] = {
    "source": TEXT,
    "begin": maybe(_TIME),
    "end": _TIME,
    "by": one_of(*map(str, Grouping)),
    "currency": TEXT,
    "rows": list_of(_ROW),
    "total": _ROW,
    "idleClaims": list_of(record(**_CLAIM, devices=COUNT, hours=SHARE, cost=_MONEY)),
    "sizes": list_of(record(**_CLAIM, advice=MAYBE_TEXT, reason=TEXT, gpusSaved=SHARE, savedPerHour=_MONEY)),
    "whatIf": maybe(record(changes=COUNT, gpus=COUNT, nodes=TEXTS, unplaced=TEXTS)),
    "unpriced": TEXTS,
    "notes": TEXTS,
}
