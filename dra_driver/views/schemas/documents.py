"""The JSON schemas of all documents that commands write, from which docs/schemas is generated.

    python -m dra_driver.views.schemas.documents FOLDER

In: nothing. Out: a file for each kind. Fields called `sentence`, `message`, `reason`, `notes`, `how`, `remedy`, `what`,
`why`, `source`, `query`, and the `subject` of a finding, are for people, and any version may change their wording; all
others are data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dra_driver.allocation.outcome import Category
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import API_VERSION, DocumentKind
from dra_driver.views.schemas.console import (
    ATTENTION,
    CLAIM_PAGE,
    CLAIMS_PAGE,
    DEVICE_PAGE,
    FLEET_PAGE,
    FLEET_SUMMARY,
    SELECTOR_PLAY,
    WHAT_IF,
)
from dra_driver.views.schemas.fleets import BRANCH, BRANCHES, HOLDER, NODE_FIGURES, UNSEEN
from dra_driver.views.schemas.others import (
    ACTION_ROW,
    CHECK,
    CHECKED_FILE,
    CORDON,
    DEMO_RUN,
    FAULT,
    FINDING,
    MIGRATED,
    REMEDIATION,
    TESTED,
)
from dra_driver.views.schemas.parts import (
    ALLOCATION,
    COUNT,
    COUNTER_SET,
    DEVICE,
    FLAG,
    MAYBE_COUNT,
    MAYBE_FLAG,
    MAYBE_TEXT,
    TEXT,
    TEXTS,
    list_of,
    map_of,
    maybe,
    one_of,
    record,
)
from dra_driver.views.schemas.selectors import FAILED, GIVEN, GROUP, LINTED, MATCHED, PART, QUERY, SELECTOR
from dra_driver.views.schemas.usage import DASHBOARD, USAGE
from dra_driver.views.schemas.worlds import EXPLANATION, MOMENT, REARRANGEMENT

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
        "findings": list_of(FINDING),
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
