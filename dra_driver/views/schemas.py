"""The JSON schemas of all documents that commands write; docs/schemas is made from them.

    python -m dra_driver.views.schemas FOLDER

In: nothing. Out: a file for each kind. Fields called `sentence`, `message`, `reason`, `notes`, `how`, `remedy`, `what`
or `why` are for people, and their wording may change in any version; all others are data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dra_driver.model.wire import Wire
from dra_driver.views.envelope import API_VERSION, DocumentKind

_TEXT: Wire = {"type": "string"}
_MAYBE_TEXT: Wire = {"type": ["string", "null"]}
_FLAG: Wire = {"type": "boolean"}
_COUNT: Wire = {"type": "integer", "minimum": 0}
_OBJECT: Wire = {"type": "object"}
_COUNTS: Wire = {"type": "object", "additionalProperties": _COUNT}


def _list(items: Wire) -> Wire:
    return {"type": "array", "items": items}


def _record(**fields: Wire) -> Wire:
    """Return the schema of an object that has all of these fields and no other."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


_TEXTS = _list(_TEXT)
_UNSEEN = _list(_record(kind=_TEXT, namespace=_MAYBE_TEXT, partial=_FLAG))
_BRANCH_FIELDS: Wire = {
    "kind": {"enum": ["node", "pool", "set", "device", "claim", "pod"]},
    "name": _TEXT,
    "like": _TEXTS,
    "heldFraction": {"type": ["number", "null"]},
    "flags": _list(_record(code=_TEXT, message=_TEXT)),
    "facts": _OBJECT,
    "children": _list({"$ref": "#/$defs/branch"}),
}
_BRANCHES = _list({"$ref": "#/$defs/branch"})
_HOLDER = _record(name=_TEXT, claims=_COUNT, devices=_COUNT, waiting=_COUNT)
_NODE_FIGURES = _record(
    node=_TEXT, like=_TEXTS, gpus=_COUNT, wholeFree=_COUNT, partitionsFree=_COUNTS, held=_COUNT, sick=_COUNT
)
_EXPLANATION: Wire = {
    "subject": _TEXT,
    "ok": _FLAG,
    "sentence": _TEXT,
    "nodes": _list(_OBJECT),
    "aborts": _FLAG,
    "kubernetes": _TEXT,
    "exact": _FLAG,
    "notes": _TEXTS,
    "gates": _OBJECT,
}
_MOMENT = _record(
    label=_TEXT,
    placed=_list(_record(job=_TEXT, node=_TEXT, devices=_TEXTS)),
    waiting=_list(_record(job=_TEXT, reason=_TEXT)),
    evicted=_TEXTS,
    usage=_record(units=_COUNT, used={"type": "number"}, scattered={"type": "number"}),
)
_REARRANGEMENT = _record(
    job=_TEXT,
    node=_TEXT,
    devices=_TEXTS,
    moves=_list(_record(job=_TEXT, source=_TEXT, target=_TEXT, leaves=_TEXTS, gets=_TEXTS)),
)
_FAULTS = _list(_record(device=_TEXT, fault=_TEXT, value={}, since=_TEXT, text=_TEXT))
_GIVEN: Wire = {
    "kubernetes": _TEXT,
    "verdicts": _TEXT,
    "gates": _OBJECT,
    "environment": _TEXT,
    "devices": _COUNT,
    "nodes": _COUNT,
    "sources": _TEXTS,
    "notes": _TEXTS,
}
_PLACE = _record(pool=_TEXT, device=_TEXT)
_USER = _record(resource=_TEXT, name=_TEXT)

_CONTENTS: dict[DocumentKind, Wire] = {
    DocumentKind.NODE_OFFER: {
        "node": _TEXT,
        "driver": _TEXT,
        "pool": _TEXT,
        "vendor": _TEXT,
        "driverVersion": _MAYBE_TEXT,
        "cudaDriverVersion": {},
        "waitingFor": _MAYBE_TEXT,
        "withheld": _MAYBE_TEXT,
        "mig": _record(
            onDemand=_FLAG,
            countersKept={"type": ["boolean", "null"]},
            server=_MAYBE_TEXT,
            notOnDemand={"type": "object", "additionalProperties": _TEXT},  # by PCI address
        ),
        "sharedCounters": _list(_OBJECT),
        "devices": _list(_OBJECT),
        "devicesWithoutCounters": _list(_OBJECT),
        "instead": _OBJECT,
        "gpus": _list(_OBJECT),
        "problems": _list(_record(code=_TEXT, subject=_TEXT, message=_TEXT)),
        "leftOut": _TEXTS,
        "faults": _FAULTS,
    },
    DocumentKind.NODE_HEALTH: {"faults": _FAULTS},
    DocumentKind.DOCTOR_REPORT: {
        "isClean": _FLAG,
        "lookedAt": _TEXTS,
        "findings": _list(
            _record(
                id=_TEXT,
                subject=_TEXT,
                message=_TEXT,
                how=_TEXT,
                remedy=_TEXT,
                severity={"enum": ["error", "warning", "note"]},
                title=_TEXT,
                page=_TEXT,
            )
        ),
        "unseen": _list(_record(what=_TEXT, why=_TEXT)),
    },
    DocumentKind.SLICE_TREE: {
        "nodes": _BRANCHES,
        "figures": _record(nodes=_list(_NODE_FIGURES), namespaces=_list(_HOLDER), classes=_list(_HOLDER)),
        "unseen": _UNSEEN,
    },
    DocumentKind.CLAIM_TREE: {"claims": _BRANCHES, "unseen": _UNSEEN},
    DocumentKind.CLAIMS_IN_USE: {
        "driver": _TEXT,
        "claims": _list(_record(namespace=_TEXT, name=_TEXT, devices=_list(_PLACE), usedBy=_list(_USER))),
    },
    DocumentKind.EXPLANATION: _EXPLANATION,
    DocumentKind.EXPLANATIONS: {"explanations": _list(_record(**_EXPLANATION))},
    DocumentKind.SIMULATION: {"moments": _list(_MOMENT), "rearrangements": _list(_REARRANGEMENT)},
    DocumentKind.MIGRATION: {"files": _list(_OBJECT), "checks": _list(_OBJECT)},
    DocumentKind.SELECTOR_MATCHES: {
        **_GIVEN,
        "engine": _TEXT,
        "caveat": _MAYBE_TEXT,
        "queries": _list(_OBJECT),
    },
    DocumentKind.SELECTOR_EXPLANATIONS: {**_GIVEN, "queries": _list(_OBJECT)},
    DocumentKind.SELECTOR_FINDINGS: {**_GIVEN, "compileErrors": _list(_OBJECT), "selectors": _list(_OBJECT)},
}


def schema_of(kind: DocumentKind) -> Wire:
    """Return the JSON schema (draft 2020-12) of one kind of document."""
    head: dict[str, Any] = {"apiVersion": {"const": API_VERSION}, "kind": {"const": str(kind)}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": str(kind),
        **_record(**head, **_CONTENTS[kind]),
    }
    if kind in {DocumentKind.SLICE_TREE, DocumentKind.CLAIM_TREE}:
        schema["$defs"] = {"branch": _record(**_BRANCH_FIELDS)}
    return schema


def text_of(kind: DocumentKind) -> str:
    """Return the file of one schema."""
    return json.dumps(schema_of(kind), indent=2) + "\n"


if __name__ == "__main__":
    for one in DocumentKind:
        (Path(sys.argv[1]) / f"{one}.json").write_text(text_of(one))
