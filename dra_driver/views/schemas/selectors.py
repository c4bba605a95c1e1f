"""The schemas of documents about selectors.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.model.wire import Wire
from dra_driver.views.schemas.parts import (
    COUNT,
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
SELECTOR = record(
    source=TEXT,
    file=MAYBE_TEXT,
    path=list_of({"type": ["string", "integer"]}),
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
FINDING = record(rule=TEXT, message=TEXT, clause=MAYBE_TEXT, fix=MAYBE_TEXT, safe=FLAG, effect=MAYBE_TEXT)
LINTED = record(
    source=TEXT,
    file=MAYBE_TEXT,
    expression=TEXT,
    better=MAYBE_TEXT,
    mended=FLAG,
    findings=list_of(FINDING),
)
