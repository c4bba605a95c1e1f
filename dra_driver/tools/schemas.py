"""The JSON schemas of all documents that commands write, from which docs/schemas is generated.

    python -m dra_driver.tools.schemas FOLDER

In: nothing. Out: a file for each kind. Fields called `sentence`, `message`, `reason`, `notes`, `how`, `remedy`, `what`,
`why`, `source`, `query`, and the `subject` of a finding, are for people, and any version may change their wording; all
others are data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dra_driver.allocation.rules import Category
from dra_driver.base.wire import Wire
from dra_driver.node.health.cases import Stage
from dra_driver.tools.schema_parts import (
    ALLOCATION,
    BRANCH,
    BRANCHES,
    COUNT,
    COUNTER_SET,
    COUNTS,
    DASHBOARD,
    DEVICE,
    EXPLANATION,
    FAILED,
    FINDING,
    FLAG,
    GIVEN,
    GROUP,
    HISTORY,
    HOLDER,
    LINTED,
    MATCHED,
    MAYBE_COUNT,
    MAYBE_FLAG,
    MAYBE_TEXT,
    MISS,
    MOMENT,
    NODE_FIGURES,
    PART,
    QUERY,
    READINGS,
    REARRANGEMENT,
    SELECTOR,
    SHARE,
    TEXT,
    TEXTS,
    UNSEEN,
    USAGE,
    list_of,
    map_of,
    maybe,
    one_of,
    record,
)
from dra_driver.tools.world.access import API_VERSION, DocumentKind

# The schemas of the documents from which the console's pages are drawn.

_STATE = one_of("free", "held", "tainted", "withheld")
_PART = record(
    device=TEXT,
    label=TEXT,
    start=SHARE,
    size=SHARE,
    state=_STATE,
    holders=TEXTS,
    users=TEXTS,
    taints=TEXTS,
    matches=MAYBE_FLAG,
)
_TILE = record(
    name=TEXT,
    driver=TEXT,
    pool=TEXT,
    kind=one_of("gpu", "other"),
    product=TEXT,
    memory=TEXT,
    numa=TEXT,
    pcieRoot=TEXT,
    linkDomain=TEXT,
    state=_STATE,
    parts=list_of(_PART),
)
FLEET_PAGE: dict[str, Wire] = {
    "version": COUNT,
    "total": COUNT,
    "matching": COUNT,
    "offset": COUNT,
    "nodes": list_of(record(node=TEXT, schedulable=FLAG, ready=FLAG, tiles=list_of(_TILE))),
    "notes": TEXTS,
}
FLEET_SUMMARY: dict[str, Wire] = {
    "nodes": COUNT,
    "gpus": COUNT,
    "states": record(free=COUNT, held=COUNT, tainted=COUNT, withheld=COUNT),
    "products": COUNTS,
    "strip": {"type": "string", "pattern": "^[fhtw]*$"},
    "version": COUNT,
    "source": TEXT,
    "live": FLAG,
    "kubernetes": TEXT,
    "gates": TEXT,
    "notes": TEXTS,
    "claims": COUNT,
    "pods": COUNT,
    "namespaces": TEXTS,
    "loading": TEXTS,
    "unseen": UNSEEN,
}
_NAMED = list_of(record(name=TEXT, value=TEXT))
_POD = record(name=TEXT, phase=MAYBE_TEXT, node=MAYBE_TEXT)
DEVICE_PAGE: dict[str, Wire] = {
    "node": TEXT,
    "driver": TEXT,
    "pool": TEXT,
    "device": TEXT,
    "published": FLAG,
    "memory": MAYBE_TEXT,
    "attributes": _NAMED,
    "capacity": _NAMED,
    "taints": list_of(record(key=TEXT, value=MAYBE_TEXT, effect=TEXT, since=MAYBE_TEXT)),
    "placements": COUNTS,
    "holders": list_of(
        record(
            device=TEXT,
            namespace=TEXT,
            claim=TEXT,
            request=TEXT,
            adminAccess=FLAG,
            since=MAYBE_TEXT,
            pods=list_of(_POD),
        )
    ),
}
_COUNTS = record(match=COUNT, noMatch=COUNT, abort=COUNT)
_JUDGED = list_of(record(driver=TEXT, pool=TEXT, device=TEXT, error=MAYBE_TEXT))
SELECTOR_PLAY: dict[str, Wire] = {
    **GIVEN,
    "selector": SELECTOR,
    "position": maybe(record(line=COUNT, column=COUNT)),
    "costLimit": COUNT,
    "counts": _COUNTS,
    "rows": list_of(record(node=TEXT, like=COUNT, counts=_COUNTS, match=_JUDGED, noMatch=_JUDGED, abort=_JUDGED)),
    "moreRows": COUNT,
    "nearestMisses": list_of(MISS),
    "findings": list_of(FINDING),
    "better": MAYBE_TEXT,
}
_ROW: dict[str, Wire] = {
    "subject": one_of("pod", "claim"),
    "namespace": TEXT,
    "name": TEXT,
    "state": one_of("pending", "allocated"),
    "terminating": FLAG,
    "since": MAYBE_TEXT,
    "claims": TEXTS,
    "devices": TEXTS,
    "pods": TEXTS,
    "nodes": TEXTS,
    "trouble": TEXT,
}
CLAIMS_PAGE: dict[str, Wire] = {
    "version": COUNT,
    "pending": COUNT,
    "matching": COUNT,
    "lines": COUNT,
    "offset": COUNT,
    "rows": list_of({"anyOf": [record(**_ROW), record(heading=TEXT, count=COUNT)]}),
    "unseen": UNSEEN,
}
CLAIM_PAGE: dict[str, Wire] = {
    **_ROW,
    "requests": list_of(record(**{"name": TEXT, "class": TEXT, "count": MAYBE_COUNT, "selectors": TEXTS})),
    "holds": list_of(
        record(
            request=TEXT,
            driver=TEXT,
            pool=TEXT,
            device=TEXT,
            cdiDevice=MAYBE_TEXT,
            taints=TEXTS,
            conditions=TEXTS,
            consumed=map_of(TEXT),
        )
    ),
    "users": TEXTS,
    "containers": list_of(record(pod=TEXT, phase=MAYBE_TEXT, node=MAYBE_TEXT, container=TEXT, health=TEXTS)),
}
WHAT_IF: dict[str, Wire] = {"now": list_of(MOMENT), "then": list_of(MOMENT), "kubernetes": TEXT}
ATTENTION: dict[str, Wire] = {
    "version": COUNT,
    "counts": COUNTS,
    "flags": list_of(record(code=TEXT, message=TEXT, kind=TEXT, place=TEXT, nodes=COUNT)),
    "namespaces": list_of(HOLDER),
    "classes": list_of(HOLDER),
    "unseen": UNSEEN,
}


# The schemas of migrated files, the demo, checked files, findings of the doctor, and a node's faults and tests.

_TIME = {"type": "string", "format": "date-time"}
_MIGRATION_ROW = {"code": TEXT, "subject": TEXT, "path": TEXT, "what": TEXT}
MIGRATED = record(
    {"diff": TEXT},
    file=TEXT,
    changed=FLAG,
    changes=list_of(record(**_MIGRATION_ROW, why=TEXT)),
    losses=list_of(record(**_MIGRATION_ROW, remedy=TEXT)),
    templates=TEXTS,
    text=TEXT,
)
CHECK = record(
    template=TEXT,
    request=TEXT,
    wanted=COUNT,
    selectors=TEXTS,
    devices=MAYBE_COUNT,
    nodes=COUNT,
    nodesWithEnough=COUNT,
    aborts=COUNT,
    problem=TEXT,
    message=TEXT,
)
FAULT = record(
    device=TEXT,
    partition=maybe(record(profileId=COUNT, start=COUNT)),
    fault=TEXT,
    value=MAYBE_TEXT,
    since=_TIME,
    message=TEXT,
)
CORDON = {"device": TEXT, "isCordoned": FLAG, "reason": MAYBE_TEXT, "since": maybe(_TIME), "until": maybe(_TIME)}
DEMO_RUN = {
    "examples": list_of(record(file=TEXT, intent=TEXT, isGood=FLAG, unmet=TEXTS, left=TEXTS)),
    "problems": TEXTS,
}
REMEDIATION = record(
    device=TEXT,
    uuid=TEXT,
    fault=TEXT,
    value=TEXT,
    stage=one_of(*Stage),
    action=one_of("none", "reset", "reboot", "command"),
    tries=COUNT,
    peers=TEXTS,
    since=_TIME,
    stageSince=_TIME,
    message=TEXT,
)
ACTION_ROW = record(at=_TIME, uuid=TEXT, action=TEXT, outcome=MAYBE_TEXT)
TESTED = record(
    device=TEXT,
    uuid=TEXT,
    level=COUNT,
    verdict=one_of("passed", "failed", "could-not-run"),
    code=MAYBE_TEXT,
    message=TEXT,
    seconds={"type": "number"},
    figures=map_of(COUNT),
)
_DOCTOR_FINDING = record(
    id=TEXT,
    subject=TEXT,
    message=TEXT,
    how=TEXT,
    remedy=TEXT,
    severity=one_of("error", "warning", "note"),
    title=TEXT,
    page=TEXT,
)
CHECKED_FILE = record(
    file=TEXT,
    usedBy=MAYBE_TEXT,
    version=MAYBE_TEXT,
    notes=TEXTS,
    fault=maybe(record(code=TEXT, message=TEXT, remedy=TEXT)),
)


_ANY: Wire = {}  # the caller's own value, returned unchanged

_CONTENTS: dict[DocumentKind, dict[str, Wire]] = {
    DocumentKind.NODE_OFFER: {
        "node": TEXT,
        "driver": TEXT,
        "pool": TEXT,
        "vendor": TEXT,
        "driverVersion": MAYBE_TEXT,
        "cudaDriverVersion": MAYBE_TEXT,
        "waitingFor": MAYBE_TEXT,
        "withheld": MAYBE_TEXT,
        "mig": record(
            onDemand=FLAG,
            countersKept=MAYBE_FLAG,
            how=MAYBE_TEXT,
            asTheyStand=list_of(record(pciAddress=TEXT, reason=TEXT)),
        ),
        "sharedCounters": list_of(COUNTER_SET),
        "devices": list_of(DEVICE),
        "devicesWithoutCounters": list_of(DEVICE),
        "instead": map_of(list_of(DEVICE)),
        "gpus": list_of(
            record(uuid=TEXT, pciAddress=TEXT, minor={"type": ["integer", "null"]}, migEnabled=FLAG, partitions=TEXTS)
        ),
        "problems": list_of(record(code=TEXT, subject=TEXT, message=TEXT)),
        "leftOut": TEXTS,
        "faults": list_of(FAULT),
    },
    DocumentKind.NODE_HEALTH: {"faults": list_of(FAULT)},
    DocumentKind.NODE_REMEDIATION: {"remediations": list_of(REMEDIATION), "actions": list_of(ACTION_ROW)},
    DocumentKind.CORDON: CORDON,
    DocumentKind.DEMO_RUN: DEMO_RUN,
    DocumentKind.VALIDATION: {"node": TEXT, "driver": TEXT, "devices": list_of(TESTED)},
    DocumentKind.CONFIG_CHECK: {"files": list_of(CHECKED_FILE)},
    DocumentKind.DOCTOR_REPORT: {
        "isClean": FLAG,
        "lookedAt": TEXTS,
        "findings": list_of(_DOCTOR_FINDING),
        "unseen": list_of(record(what=TEXT, why=TEXT)),
    },
    DocumentKind.SLICE_TREE: {
        "nodes": BRANCHES,
        "figures": record(nodes=list_of(NODE_FIGURES), namespaces=list_of(HOLDER), classes=list_of(HOLDER)),
        "unseen": UNSEEN,
    },
    DocumentKind.CLAIM_TREE: {"claims": BRANCHES, "unseen": UNSEEN},
    DocumentKind.FLEET_SUMMARY: FLEET_SUMMARY,
    DocumentKind.FLEET_PAGE: FLEET_PAGE,
    DocumentKind.DEVICE_PAGE: DEVICE_PAGE,
    DocumentKind.CLAIMS_PAGE: CLAIMS_PAGE,
    DocumentKind.CLAIM_PAGE: CLAIM_PAGE,
    DocumentKind.WHAT_IF: WHAT_IF,
    DocumentKind.ATTENTION: ATTENTION,
    DocumentKind.SELECTOR_PLAY: SELECTOR_PLAY,
    DocumentKind.CLAIMS_IN_USE: {
        "driver": TEXT,
        "claims": list_of(
            record(
                namespace=TEXT,
                name=TEXT,
                devices=list_of(record(pool=TEXT, device=TEXT)),
                usedBy=list_of(record(resource=TEXT, name=TEXT)),
            )
        ),
        "unseen": UNSEEN,
    },
    DocumentKind.EXPLANATION: EXPLANATION,
    DocumentKind.EXPLANATIONS: {"explanations": list_of(record(**EXPLANATION))},
    DocumentKind.SIMULATION: {"moments": list_of(MOMENT), "rearrangements": list_of(REARRANGEMENT)},
    DocumentKind.MIGRATION: {"files": list_of(MIGRATED), "checks": list_of(CHECK)},
    DocumentKind.USAGE_REPORT: USAGE,
    DocumentKind.DASHBOARD: DASHBOARD,
    DocumentKind.READINGS: READINGS,
    DocumentKind.HISTORY: HISTORY,
    DocumentKind.SELECTOR_MATCHES: {
        **GIVEN,
        "engine": TEXT,
        "caveat": MAYBE_TEXT,
        "queries": list_of(
            record(
                **QUERY,
                nodes=list_of(record(node=TEXT, like=TEXTS, match=MATCHED, noMatch=MATCHED, abort=FAILED)),
            )
        ),
    },
    DocumentKind.SELECTOR_EXPLANATIONS: {**GIVEN, "queries": list_of(record(**QUERY, groups=list_of(GROUP)))},
    DocumentKind.SELECTOR_FINDINGS: {**GIVEN, "compileErrors": list_of(SELECTOR), "selectors": list_of(LINTED)},
    DocumentKind.SELECTOR_TESTS: {"tests": list_of(record(file=TEXT, name=TEXT, failures=TEXTS))},
    DocumentKind.SELECTOR_VERDICT: {
        "id": _ANY,
        "compileError": MAYBE_TEXT,
        "errorKind": MAYBE_TEXT,
        "type": MAYBE_TEXT,
        "maxCost": MAYBE_COUNT,
        "admissible": FLAG,
        "results": list_of({"oneOf": [record(match=FLAG), record(error=TEXT)]}),
    },
    DocumentKind.ALLOCATION_VERDICT: {
        "id": _ANY,
        "nodes": map_of(
            record(
                ok=FLAG,
                results=maybe(list_of(ALLOCATION)),
                category=one_of(*map(str, Category)),
                error=MAYBE_TEXT,
            )
        ),
    },
    DocumentKind.BATCH_FAULT: {"id": _ANY, "line": COUNT, "error": TEXT},
}
_DEFINITIONS: dict[DocumentKind, Wire] = {
    DocumentKind.SLICE_TREE: {"branch": BRANCH},
    DocumentKind.CLAIM_TREE: {"branch": BRANCH},
    DocumentKind.SELECTOR_EXPLANATIONS: {"part": PART},
}


def schema_of(kind: DocumentKind) -> Wire:
    """Return the JSON schema (draft 2020-12) of one kind of document."""
    head: dict[str, Any] = {"apiVersion": {"const": API_VERSION}, "kind": {"const": str(kind)}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": str(kind),
        **record(**head, **_CONTENTS[kind]),
    }
    if kind in _DEFINITIONS:
        schema["$defs"] = _DEFINITIONS[kind]
    return schema


def text_of(kind: DocumentKind) -> str:
    """Return the file of one schema."""
    return json.dumps(schema_of(kind), indent=2) + "\n"


if __name__ == "__main__":
    for one in DocumentKind:
        (Path(sys.argv[1]) / f"{one}.json").write_text(text_of(one))
